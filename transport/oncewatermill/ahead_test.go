package oncewatermill_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A slow store takes a while to settle, and refuses some.
type slowStore struct {
	dedupstore.Store
	refuse map[string]error // by message ID

	mu     sync.Mutex
	keep   chan struct{} // nil: it does not wait
	claims []int         // how many came together
}

func (s *slowStore) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	s.mu.Lock()
	s.claims = append(s.claims, len(requests))
	s.mu.Unlock()
	return s.Store.Claim(ctx, requests)
}

func (s *slowStore) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	s.mu.Lock()
	keep := s.keep
	s.mu.Unlock()
	if keep != nil {
		<-keep
	}
	return dedupstore.SettleEach(ctx, settlings, func(ctx context.Context, c dedupstore.Claim, t dedupstore.Settlement) error {
		if err := s.refuse[c.Key.ID]; err != nil {
			return err
		}
		return dedupstore.SettleOne(ctx, s.Store, c, t)
	})
}

func (s *slowStore) wait(keep chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = keep
}

// The Router has acknowledged a message whose outcome is on its way: the broker's ack follows when that is stored.
func TestSubscriber_BrokersAckFollowsTheStoredOutcome(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &slowStore{Store: newStore(t)}
		p := newProcessor(t, store, consumer.Config{})
		s := newSource(p, delivery("first"))
		var handled []string
		stop := over(t, s, func(m *message.Message) error { handled = append(handled, m.UUID); return nil },
			oncewatermill.Middleware(p))
		synctest.Wait() // from now on messages are claimed before the Router has them
		keep := make(chan struct{})
		store.wait(keep)
		s.queue <- delivery("a")
		synctest.Wait()
		if len(handled) != 2 {
			t.Errorf("%v were handled, want two messages", handled)
		}
		s.want(t, consumer.Ack) // of the first
		close(keep)
		synctest.Wait()
		s.want(t, consumer.Ack, consumer.Ack)
		stop()
	})
}

// A claim that is given back while its message is held up keeps nobody from what becomes of the message.
func TestSubscriber_ALateGiveBackHoldsNothingUp(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &slowStore{Store: newStore(t)}
		p := newProcessor(t, store, consumer.Config{})
		s := newSource(p, delivery("first"))
		stop := over(t, s, func(*message.Message) error { return nil },
			func(next message.HandlerFunc) message.HandlerFunc {
				return func(m *message.Message) ([]*message.Message, error) {
					if m.UUID == "held" {
						time.Sleep(longestAhead + time.Millisecond)
						return nil, errors.New("refused outside")
					}
					return next(m)
				}
			}, oncewatermill.Middleware(p))
		synctest.Wait()
		keep := make(chan struct{})
		store.wait(keep)
		s.queue <- delivery("held")
		time.Sleep(longestAhead + 2*time.Millisecond)
		synctest.Wait()
		s.want(t, consumer.Ack, consumer.RetryLater)
		close(keep)
		stop()
	})
}

// A middleware outside may make several messages of one, whose guarded calls share the context.
func TestSubscriber_PartsOfAMessageHaveTheirOwnOutputs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		s := newSource(p, delivery("first"), delivery("second"))
		var mu sync.Mutex
		var handled []string
		stop := over(t, s, func(m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, m.UUID)
			return nil
		}, func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				var parts sync.WaitGroup
				for _, name := range []string{"a", "b"} {
					part := m.CopyWithContext()
					part.UUID += name
					part.Metadata.Set(producer.HeaderID, part.UUID)
					parts.Go(func() {
						if _, err := next(part); err != nil {
							t.Error(err)
						}
					})
				}
				parts.Wait()
				return nil, nil
			}
		}, oncewatermill.Middleware(p))
		synctest.Wait()
		s.want(t, consumer.Ack, consumer.Ack)
		if slices.Sort(handled); !slices.Equal(handled, []string{"firsta", "firstb", "seconda", "secondb"}) {
			t.Errorf("%v were handled", handled)
		}
		stop()
	})
}

// A settlement that is refused after the Router's ack is no ack to the broker.
func TestSubscriber_RefusedSettlementIsNoAckToTheBroker(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &slowStore{Store: newStore(t), refuse: map[string]error{
			"lost": dedupstore.ErrClaimLost, "unrecorded": errors.New("the store is down"),
		}}
		p := newProcessor(t, store, consumer.Config{})
		s := newSource(p, delivery("first"))
		stop := over(t, s, func(*message.Message) error { return nil }, oncewatermill.Middleware(p))
		synctest.Wait()
		s.queue <- delivery("lost")
		synctest.Wait()
		s.want(t, consumer.Ack, consumer.Leave)
		s.queue <- delivery("unrecorded")
		time.Sleep(time.Minute) // of virtual time: until the lease ends, it is tried again
		if got := s.actions(); len(got) < 3 || slices.Contains(got[1:], consumer.Ack) {
			t.Errorf("the source was told %v, want no ack for what could not be recorded", got)
		}
		stop()
	})
}

// A middleware outside of the guard decrypts messages or gives them other IDs: they are the same messages, whether they
// were claimed before the Router had them or not.
func TestSubscriber_MessageChangedOutsideOfTheGuardIsWhatItBecame(t *testing.T) {
	decrypt := func(m *message.Message) { m.Payload = append(message.Payload("plain "), m.Payload...) }
	rename := func(m *message.Message) {
		m.Metadata.Set(producer.HeaderID, "plain-"+m.Metadata.Get(producer.HeaderID))
	}
	for name, change := range map[string]func(*message.Message){
		"payload": decrypt,
		"ID":      rename,
		"both":    func(m *message.Message) { decrypt(m); rename(m) },
		"some payloads": func(m *message.Message) {
			if m.Metadata.Get(producer.HeaderID) != "first" {
				decrypt(m)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t), consumer.Config{})
				s := newSource(p)
				outside := func(next message.HandlerFunc) message.HandlerFunc {
					return func(m *message.Message) ([]*message.Message, error) {
						change(m)
						return next(m)
					}
				}
				var runs []string
				stop := over(t, s, func(m *message.Message) error {
					runs = append(runs, m.UUID)
					if len(runs) == 4 { // the attempt is made again
						return errors.New("not yet")
					}
					return nil
				}, outside, oncewatermill.Middleware(p))
				for _, id := range []string{"first", "first", "a", "b", "b", "c", "c"} {
					s.queue <- delivery(id)
					synctest.Wait()
				}
				time.Sleep(time.Minute) // of virtual time, for the second attempt
				stop()
				if want := []string{"first", "a", "b", "c", "c"}; !slices.Equal(runs, want) {
					t.Errorf("ran %q, want %q", runs, want)
				}
				for _, action := range s.actions() {
					if action != consumer.Ack && action != consumer.RetryLater {
						t.Errorf("the source was told %v", s.actions())
					}
				}
			})
		})
	}
}

// A dead letter has the payload and the headers that came to the guard, and not one of these and one of those.
func TestSubscriber_DeadLetterOfAChangedMessageIsWhatItBecame(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var dead deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{
			DeadLetters: &dead, DeadLetterTopic: "dead", Policy: oncemill.Policy{Mismatch: oncemill.MismatchIgnore},
		})
		decrypt := func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				m.Payload = append(message.Payload("plain "), m.Payload...)
				delete(m.Metadata, "key")
				return next(m)
			}
		}
		handle := func(m *message.Message) error {
			if m.UUID == "a" {
				return oncemill.Permanent(errors.New("no"))
			}
			return nil
		}
		s := newSource(p, delivery("first"))
		stop := over(t, s, handle, decrypt, oncewatermill.Middleware(p))
		synctest.Wait()
		a := delivery("a")
		a.Header["key"] = "7"
		want := "plain " + string(a.Payload)
		s.queue <- a
		synctest.Wait()
		stop()
		if got := dead.Only(t); string(got.Payload) != want || got.Header["key"] != "" {
			t.Errorf("dead letter %q with %v, want %q without a key", got.Payload, got.Header, want)
		}
	})
}

// A message that failed in an earlier process goes on, although it is claimed by the content that the broker has of it.
func TestSubscriber_ChangedMessageOfAnEarlierProcessGoesOn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		decrypt := func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				if len(m.Payload) > 0 {
					m.Payload = append(message.Payload("plain "), m.Payload...)
				}
				return next(m)
			}
		}
		var runs []string
		handle := func(m *message.Message) error {
			if runs = append(runs, m.UUID); len(runs) == 1 {
				return errors.New("not yet")
			}
			return nil
		}
		earlier := newSource(p, delivery("a"))
		stop := over(t, earlier, handle, decrypt, oncewatermill.Middleware(p))
		synctest.Wait()
		stop()
		time.Sleep(time.Minute)
		empty := delivery("first")
		empty.Payload = nil
		s := newSource(p, empty)
		stop = over(t, s, handle, decrypt, oncewatermill.Middleware(p))
		synctest.Wait()
		s.queue <- delivery("a")
		time.Sleep(time.Minute)
		stop()
		s.want(t, consumer.Ack, consumer.Ack)
		if want := []string{"a", "first", "a"}; !slices.Equal(runs, want) {
			t.Errorf("ran %q, want %q", runs, want)
		}
	})
}

// A nack outside the guard is heeded, although the outcome is on its way: the duplicate gives the Router another try at
// what failed outside.
func TestSubscriber_NackOutsideOfTheGuardBringsTheMessageAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		s := newSource(p, delivery("first"))
		fails, runs := 0, 0
		outside := func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				out, err := next(m)
				if fails--; fails == 0 {
					return nil, errors.New("an audit log is full")
				}
				return out, err
			}
		}
		stop := over(t, s, func(*message.Message) error { runs++; return nil }, outside, oncewatermill.Middleware(p))
		synctest.Wait()
		fails = 1
		s.queue <- delivery("a")
		time.Sleep(time.Second)
		synctest.Wait()
		s.want(t, consumer.Ack, consumer.RetryLater, consumer.Ack)
		if runs != 2 {
			t.Errorf("the handler ran %d times, want once for each message", runs)
		}
		stop()
	})
}

// Messages that arrive together are claimed together, before the Router has them.
func TestSubscriber_ClaimsTravelTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &slowStore{Store: newStore(t)}
		p := newProcessor(t, store, consumer.Config{})
		s := newSource(p, delivery("first"))
		stop := over(t, s, func(*message.Message) error { return nil }, oncewatermill.Middleware(p))
		synctest.Wait()
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
			s.queue <- delivery(id)
		}
		synctest.Wait()
		stop()
		store.mu.Lock()
		defer store.mu.Unlock()
		if n := len(store.claims); n > 6 {
			t.Errorf("7 messages were claimed in %v, want them together", store.claims)
		}
	})
}

// What was claimed while its source began to stop is given back.
func TestSubscriber_NothingStartsAfterItsSourceHasBegunToStop(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		s := newSource(p, delivery("first"))
		runs := 0
		stop := over(t, s, func(*message.Message) error { runs++; return nil }, oncewatermill.Middleware(p))
		synctest.Wait()
		stopping := make(chan struct{})
		close(stopping)
		late := delivery("late")
		late.Stopping = stopping
		s.queue <- late
		time.Sleep(time.Second) // virtual
		synctest.Wait()
		stop()
		if actions := s.actions(); runs != 1 || len(actions) < 2 || slices.Contains(actions[1:], consumer.Ack) {
			t.Errorf("%d runs, and the source was told %v", runs, actions)
		}
	})
}

// A handler may acknowledge its message before its outcome is on its way. The source hears of that once, and not again
// when the outcome is stored.
func TestSubscriber_SourceIsToldOnceOfAMessageThatItsHandlerAcknowledges(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		s := newSource(p, delivery("first"))
		reported := map[string]int{}
		counting := countingSource{source: s, reported: reported}
		stop := over(t, counting, func(m *message.Message) error {
			if m.Metadata.Get(producer.HeaderID) == "a" {
				m.Ack()
				time.Sleep(time.Second) // of virtual time: the subscription sees the ack before the handler returns
			}
			return nil
		}, oncewatermill.Middleware(p))
		synctest.Wait()
		s.queue <- delivery("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		if reported["a"] != 1 || reported["first"] != 1 {
			t.Errorf("the source was told %v times, want once of each", reported)
		}
	})
}

// A countingSource counts what its deliveries are told.
type countingSource struct {
	*source
	reported map[string]int
}

func (c countingSource) Run(ctx context.Context, topic string, handle consumer.SourceHandler) error {
	var mu sync.Mutex
	return c.source.Run(ctx, topic, func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
		id := d.Header[producer.HeaderID]
		handle(ctx, d, func(decision consumer.Decision) {
			mu.Lock()
			c.reported[id]++
			first := c.reported[id] == 1
			mu.Unlock()
			if first {
				done(decision)
			}
		})
	})
}
