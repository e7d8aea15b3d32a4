package oncewatermill_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A source delivers what it is given, all at once, and carries decisions out as the contract says.
type source struct {
	once  *consumer.Processor
	queue chan consumer.Delivery
	grace time.Duration
	stops int   // so many calls of Run fail at once
	check error // of Check

	mu        sync.Mutex
	runs      int
	decisions []consumer.Decision
	givenBack []string
}

func newSource(once *consumer.Processor, deliveries ...consumer.Delivery) *source {
	s := &source{once: once, queue: make(chan consumer.Delivery, 100), grace: 10 * time.Second}
	for _, d := range deliveries {
		s.queue <- d
	}
	return s
}

func (s *source) Processor() *consumer.Processor { return s.once }

func (s *source) Check(context.Context, string) error { return s.check }

func (s *source) Run(ctx context.Context, _ string, handle consumer.SourceHandler) error {
	s.mu.Lock()
	s.runs++
	broken := s.runs <= s.stops
	s.mu.Unlock()
	if broken {
		return errors.New("consumer was deleted")
	}
	each, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(s.grace, cut) })()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-s.queue:
			running.Go(func() { s.deliver(ctx, each, d, handle) })
		}
	}
}

func (s *source) deliver(ctx, each context.Context, d consumer.Delivery, handle consumer.SourceHandler) {
	for d.Count = 1; ; d.Count++ {
		decided := make(chan consumer.Decision, 1)
		own := d
		own.Header = maps.Clone(d.Header) // it is handle's to change
		handle(each, own, func(decision consumer.Decision) { decided <- decision })
		decision := <-decided
		s.mu.Lock()
		s.decisions = append(s.decisions, decision)
		s.mu.Unlock()
		if decision.Action != consumer.RetryLater {
			return
		}
		select {
		case <-time.After(decision.Delay):
		case <-d.Stopping:
			return
		case <-ctx.Done():
			s.mu.Lock()
			s.givenBack = append(s.givenBack, d.Header.Get(producer.HeaderID))
			s.mu.Unlock()
			return
		}
	}
}

func (s *source) actions() (actions []consumer.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.decisions {
		actions = append(actions, d.Action)
	}
	return actions
}

func (s *source) want(t *testing.T, actions ...consumer.Action) {
	t.Helper()
	if got := s.actions(); !slices.Equal(got, actions) {
		t.Errorf("the source was told %v, want %v", got, actions)
	}
}

// subscriber is one over a source.
func subscriber(t *testing.T, s consumer.Source) message.Subscriber {
	t.Helper()
	sub, err := oncewatermill.NewSubscriber(s, "charge")
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// over starts a Router over a source, with middlewares and a handler.
func over(t *testing.T, s consumer.Source, handle message.NoPublishHandlerFunc, mws ...message.HandlerMiddleware) (stop func()) {
	t.Helper()
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	r.AddMiddleware(mws...)
	r.AddConsumerHandler("charge", "orders", subscriber(t, s), handle)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.Background()) }()
	<-r.Running()
	return func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestSubscriber_MessagesAreWhatTheBrokerHas(t *testing.T) {
	virtual(t, func(t *testing.T) {
		foreign := consumer.Delivery{Topic: "orders", Header: producer.Header{"color": "red"}, UUID: "from-watermill", Payload: []byte("x")}
		p := newProcessor(t, newStore(t), consumer.Config{Policy: oncemill.Policy{MissingID: oncemill.MissingIDBypass}})
		s := newSource(p, delivery("a"), foreign, consumer.Delivery{Topic: "orders"})
		var got []string
		var mu sync.Mutex
		stop := over(t, s, func(m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprintf("%s|%s|%s", m.UUID, m.Metadata.Get("color"), m.Payload))
			return nil
		}, oncewatermill.Middleware(p))
		synctest.Wait()
		stop()
		slices.Sort(got)
		if want := []string{"a|blue|order a", "from-watermill|red|x", "||"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		s.want(t, consumer.Ack, consumer.Ack, consumer.Ack)
	})
}

// The middleware's decision reaches the source as it is: a Router could only nack.
func TestSubscriber_TheMiddlewaresDecisionReachesTheSource(t *testing.T) {
	for name, c := range map[string]struct {
		policy oncemill.Policy
		err    error
		want   consumer.Action
		delay  time.Duration
	}{
		"retry after":   {err: oncemill.RetryAfter(7*time.Minute, errors.New("later")), want: consumer.RetryLater, delay: 7 * time.Minute},
		"rejected":      {err: oncemill.Permanent(errors.New("never")), want: consumer.Reject},
		"last attempt":  {policy: oncemill.Policy{MaxAttempts: 1}, err: errors.New("broken"), want: consumer.Reject},
		"unknown, kept": {policy: oncemill.Irreversible(), err: errors.New("who knows"), want: consumer.Reject},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p := newProcessor(t, newStore(t), consumer.Config{Policy: c.policy})
				s := newSource(p, delivery("a"))
				began := time.Now()
				stop := over(t, s, func(*message.Message) error { return c.err }, oncewatermill.Middleware(p))
				synctest.Wait()
				if spent := time.Since(began); spent > time.Second {
					t.Errorf("the middleware spent %v; it is for the source to delay", spent)
				}
				stop()
				s.want(t, c.want)
				if got := s.decisions[0].Delay; got != c.delay {
					t.Errorf("delay %v, want %v", got, c.delay)
				}
			})
		})
	}
}

func TestSubscriber_LostClaimIsLeftAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, lossy{Store: newStore(t)}, consumer.Config{})
		s := newSource(p, delivery("a"))
		stop := over(t, s, func(*message.Message) error { return nil }, oncewatermill.Middleware(p))
		synctest.Wait()
		stop()
		s.want(t, consumer.Leave)
	})
}

func TestSubscriber_DownStoreSaysThatTheDeliveryIsToBeKept(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, deadStore{newStore(t)}, consumer.Config{MaxWait: consumer.NoWait})
		s := newSource(p, delivery("a"))
		stop := over(t, s, func(*message.Message) error { t.Error("the handler ran"); return nil }, oncewatermill.Middleware(p))
		synctest.Wait()
		stop()
		s.want(t, consumer.RetryLater)
		if d := s.decisions[0]; !d.Keep || d.Delay <= 0 {
			t.Errorf("decision %+v, want Keep, and a delay", d)
		}
	})
}

type deadStore struct{ dedupstore.Store }

func (s deadStore) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (deadStore) claimOne(context.Context, dedupstore.Request) (dedupstore.Answer, error) {
	return dedupstore.Answer{}, errors.New("connection refused")
}

// Without the middleware a nack is not the broker's bare nak, and grows.
func TestSubscriber_NacksWithoutADecisionAreDelayedMoreAndMore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(newProcessor(t, newStore(t), consumer.Config{}), delivery("a"))
		runs := 0
		stop := over(t, s, func(*message.Message) error {
			if runs++; runs <= 12 {
				return errors.New("not yet")
			}
			return nil
		})
		<-time.After(time.Hour)
		stop()
		if len(s.decisions) != 13 || s.decisions[12].Action != consumer.Ack {
			t.Fatalf("the source was told %v", s.actions())
		}
		for i, d := range s.decisions[:12] {
			if i > 0 && i < 7 && d.Delay <= s.decisions[i-1].Delay || d.Delay < 50*time.Millisecond || d.Delay > 12*time.Second {
				t.Errorf("delay %d is %v after %v", i, d.Delay, s.decisions[max(i-1, 0)].Delay)
			}
		}
	})
}

func TestSubscriber_DrainLetsHandlersFinish(t *testing.T) {
	for name, ends := range map[string]func(s message.Subscriber, cancel func()){
		"Close":                 func(s message.Subscriber, _ func()) { s.Close() },
		"context":               func(_ message.Subscriber, cancel func()) { cancel() },
		"Close from many sides": func(s message.Subscriber, _ func()) { go s.Close(); go s.Close(); s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				s := newSource(newProcessor(t, newStore(t), consumer.Config{}), delivery("a"), delivery("b"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				sub := subscriber(t, s)
				messages, err := sub.Subscribe(ctx, "orders")
				if err != nil {
					t.Fatal(err)
				}
				taken := <-messages
				synctest.Wait() // the other one waits for a reader
				go ends(sub, cancel)
				<-time.After(time.Second)
				if taken.Context().Err() != nil {
					t.Error("the handler's context ended with the drain")
				}
				taken.Ack()
				for m := range messages {
					t.Errorf("message %s was handed over during the drain", m.UUID)
				}
				synctest.Wait()
				acked := slices.Index(s.actions(), consumer.Ack) >= 0
				if !acked || len(s.givenBack) != 1 {
					t.Errorf("the source was told %v and gave back %v, want one Ack, and one given back", s.actions(), s.givenBack)
				}
				if taken.Context().Err() == nil {
					t.Error("the message's context lives on after its ack")
				}
				sub.Close()
			})
		})
	}
}

// A handler that never ends is cut short by the source's grace, and its message is neither acked nor nacked.
func TestSubscriber_DrainIsBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(newProcessor(t, newStore(t), consumer.Config{}), delivery("a"))
		sub := subscriber(t, s)
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		taken := <-messages
		began := time.Now()
		sub.Close()
		if spent := time.Since(began); spent != s.grace {
			t.Errorf("Close took %v, want the grace of %v", spent, s.grace)
		}
		if taken.Context().Err() == nil {
			t.Error("the message's context lives on")
		}
		s.want(t, consumer.Leave)
		if _, err := sub.Subscribe(t.Context(), "orders"); err == nil {
			t.Error("a closed Subscriber subscribes")
		}
	})
}

func TestSubscriber_BeginsAgainWhenTheSourceCannotGoOn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(newProcessor(t, newStore(t), consumer.Config{}), delivery("a"))
		s.stops = 5
		stop := over(t, s, func(*message.Message) error { return nil })
		<-time.After(5 * time.Minute)
		s.want(t, consumer.Ack)
		stop()
		if s.runs != 6 {
			t.Errorf("%d runs of the source, want 6", s.runs)
		}
	})
}

func TestSubscriber_ReturnsWhatIsWrongWithTheTopic(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(newProcessor(t, newStore(t), consumer.Config{}))
		s.check = errors.New("no stream")
		if _, err := subscriber(t, s).Subscribe(t.Context(), "orders"); !errors.Is(err, s.check) {
			t.Errorf("error %v, want the source's", err)
		}
	})
}

// Watermill's own PoisonQueue takes each error for poison. A message that needs another try, or waits for its store, is
// not lost by that: it comes again. Messages that the guard rejected for good go to the poison queue.
func TestSubscriber_WhatHasToComeAgainDoesSoThoughAnOuterMiddlewareAcknowledgesIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		s, poison := newSource(p, delivery("a"), delivery("b")), nowhere{}
		stock, err := middleware.PoisonQueue(poison, "poison")
		if err != nil {
			t.Fatal(err)
		}
		runs := map[string]int{}
		var mu sync.Mutex
		stop := over(t, s, consuming(stock(oncewatermill.Middleware(p)(func(m *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			id := m.Metadata.Get(producer.HeaderID)
			runs[id]++
			switch {
			case id == "b":
				return nil, oncemill.Permanent(errors.New("declined"))
			case runs[id] < 3:
				return nil, errors.New("not yet")
			}
			return nil, nil
		}))))
		<-time.After(time.Minute)
		stop()
		if runs["a"] != 3 || runs["b"] != 1 {
			t.Errorf("runs %v, want 3 of a, 1 of b", runs)
		}
		acks := 0
		for _, action := range s.actions() {
			if action == consumer.Ack {
				acks++
			}
		}
		if acks != 2 || len(s.decisions) != 4 {
			t.Errorf("the source was told %v, want two to be retried, and then an ack of each message", s.actions())
		}
	})
}

// nowhere takes all messages.
type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

func consuming(h message.HandlerFunc) message.NoPublishHandlerFunc {
	return func(m *message.Message) error {
		_, err := h(m)
		return err
	}
}

// The guard has said that the message comes again, and when. A Retry outside that calls again in place would burn its attempts.
func TestSubscriber_RetryOutsideOfTheGuardIsRefusedAndSaid(t *testing.T) {
	for name, reset := range map[string]bool{"keeps its context": false, "gets its context back": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				p, log := logged(t, consumer.Config{})
				s := newSource(p, delivery("a"))
				h := &handler{then: func(_ *message.Message, n int) ([]*message.Message, error) {
					if n == 1 {
						return nil, oncemill.RetryAfter(time.Minute, errors.New("not yet"))
					}
					return []*message.Message{message.NewMessage("receipt", nil)}, nil
				}}
				r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
				if err != nil {
					t.Fatal(err)
				}
				retry := middleware.Retry{MaxRetries: 10, InitialInterval: time.Second, ResetContextOnRetry: reset}
				r.AddMiddleware(retry.Middleware, oncewatermill.Middleware(p))
				r.AddHandler("charge", "orders", subscriber(t, s), "receipts", &flaky{Publisher: nowhere{}, fails: 1}, h.handle)
				ended := make(chan error, 1)
				go func() { ended <- r.Run(context.Background()) }()
				<-time.After(time.Hour)
				if err := errors.Join(r.Close(), <-ended); err != nil {
					t.Error(err)
				}
				h.want(t, 2)
				s.want(t, consumer.RetryLater, consumer.RetryLater, consumer.Ack) // the second for outputs that were not published
				if n := strings.Count(log.String(), "a Retry outside of the guard"); n != 1 || !strings.Contains(log.String(), "level=ERROR") {
					t.Errorf("said %d times, want once: %s", n, log)
				}
			})
		})
	}
}

// An acknowledged message stays so, whatever becomes of it.
func TestSubscriber_MessageThatWasAcknowledgedBeforeItFailedDoesNotComeAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		s, want := newSource(p), []consumer.Action(nil)
		for i := range 50 { // it is a race whether the failure is seen together with the ack
			s.queue <- delivery(fmt.Sprintf("m%d", i))
			want = append(want, consumer.Ack)
		}
		stop := over(t, s, consuming(middleware.InstantAck(oncewatermill.Middleware(p)(func(*message.Message) ([]*message.Message, error) {
			return nil, errors.New("no answer")
		}))))
		<-time.After(time.Minute)
		stop()
		s.want(t, want...)
	})
}

// revoking is a source whose delivery is taken away before anybody takes it.
type revoking struct {
	once    *consumer.Processor
	decided chan consumer.Decision
}

func (r revoking) Processor() *consumer.Processor { return r.once }

func (revoking) Check(context.Context, string) error { return nil }

func (r revoking) Run(ctx context.Context, _ string, handle consumer.SourceHandler) error {
	each, revoke := context.WithCancel(context.WithoutCancel(ctx))
	time.AfterFunc(time.Second, revoke)
	handle(each, delivery("a"), func(d consumer.Decision) { r.decided <- d })
	<-ctx.Done()
	return nil
}

func TestSubscriber_DeliveryThatIsTakenAwayBeforeItIsHandedOverDoesNotWaitForAReader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := revoking{newProcessor(t, newStore(t), consumer.Config{}), make(chan consumer.Decision, 1)}
		sub := subscriber(t, s)
		if _, err := sub.Subscribe(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		if d := <-s.decided; d.Action != consumer.RetryLater || !d.Keep {
			t.Errorf("decision %+v, want to keep it", d)
		}
		sub.Close()
	})
}

// Some brokers keep the context of a produced message, and with it what is known of the message that it was produced for.
func TestMiddleware_PassageOfAnotherMessageIsNotUsed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{
			Extractors: []producer.Extractor{producer.ExtractMessageID, producer.ExtractPosition},
		})
		d := delivery("a")
		d.Position = "7"
		s := newSource(p, d)
		var kept context.Context
		stop := over(t, s, func(m *message.Message) error {
			kept = m.Context() //nolint:fatcontext // as such brokers do
			return nil
		}, oncewatermill.Middleware(p))
		synctest.Wait()
		stop()
		b := message.NewMessage("", nil) // no ID but, perhaps, the position of the other one
		b.SetContext(context.WithoutCancel(kept))
		began := time.Now()
		_, err := oncewatermill.Middleware(p)((&handler{}).handle)(b)
		as[*consumer.MissingIDError](t, err)
		if time.Since(began) < time.Second {
			t.Errorf("nacked after %v, want a pause", time.Since(began))
		}
		s.want(t, consumer.Ack)
	})
}

// Logs and mocks print contexts while others use them. The printed text is no content of messages.
func TestSubscriber_ContextOfAMessageCanBePrinted(t *testing.T) {
	virtual(t, func(t *testing.T) {
		sub := subscriber(t, newSource(newProcessor(t, newStore(t), consumer.Config{}), consumer.Delivery{UUID: "o1", Header: producer.Header{"authorization": "secret"}}))
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		msg := <-messages
		ctx := msg.Context()
		go ctx.Done()
		if text := fmt.Sprint(ctx); strings.Contains(text, "secret") {
			t.Errorf("the context is printed as %s", text)
		}
		msg.Ack()
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestSubscriber_SecondSubscriptionOfATopicIsAWarning(t *testing.T) {
	t.Parallel()
	p, log := logged(t, consumer.Config{})
	subscriber := subscriber(t, newSource(p))
	subscribe := func(ctx context.Context, topic string) <-chan *message.Message {
		messages, err := subscriber.Subscribe(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		return messages
	}
	for range 2 { // one after the other
		ctx, end := context.WithCancel(t.Context())
		messages := subscribe(ctx, "orders")
		end()
		<-messages
	}
	subscribe(t.Context(), "orders")
	subscribe(t.Context(), "receipts")
	if log.Len() > 0 {
		t.Errorf("of subscriptions that share nothing: %s", log)
	}
	subscribe(t.Context(), "orders")
	if !strings.Contains(log.String(), "subscribed to twice") {
		t.Errorf("nobody was told: %q", log)
	}
	if err := subscriber.Close(); err != nil {
		t.Error(err)
	}
}

// A Router without the middleware guards nothing. The subscription notices at the first ack.
func TestSubscriber_WithoutTheMiddlewareItSaysSo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, log := logged(t, consumer.Config{})
		s, h := newSource(p, delivery("a"), delivery("a")), &handler{}
		stop := over(t, s, consuming(h.handle))
		<-time.After(time.Minute)
		stop()
		h.want(t, 2)
		s.want(t, consumer.Ack, consumer.Ack)
		said := log.String()
		if n := strings.Count(said, "level=ERROR"); n != 1 || !strings.Contains(said, "oncewatermill.AddHandler") {
			t.Errorf("want one error in the log that says what to add:\n%s", said)
		}
	})
}

// A middleware outside of the guard may leave messages out. That does not make the guard's own part the subscription's,
// which could not store outputs: the handler would run again for those that are not published.
func TestSubscriber_WhatIsLeftOutBeforeTheGuardLeavesTheOthersToIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{})
		filter := func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				if strings.HasPrefix(m.Metadata.Get(producer.HeaderID), "skip") {
					return nil, nil
				}
				return next(m)
			}
		}
		r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		r.AddMiddleware(filter, oncewatermill.Middleware(p))
		s, pub := newSource(p), &failingOnce{}
		h := &handler{then: func(*message.Message, int) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("", []byte("receipt"))}, nil
		}}
		r.AddHandler("charge", "orders", subscriber(t, s), "receipts", pub, h.handle)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-r.Running()
		for n, id := range []string{"skip 1", "a", "skip 2", "b"} {
			pub.fails = true
			s.queue <- delivery(id)
			<-time.After(time.Minute)
			synctest.Wait()
			if want := (n + 1) / 2; h.runs != want || len(pub.sent) != want {
				t.Errorf("after %q: %d runs and %d outputs, want %d of each", id, h.runs, len(pub.sent), want)
			}
		}
		if err := errors.Join(r.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
}

// Messages without an ID tell that the middleware is there, too.
func TestSubscriber_WhatIsLeftOutAfterMessagesWithoutAnIDIsNotTheGuards(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var dead deadLetters
		p := newProcessor(t, newStore(t), consumer.Config{DeadLetters: &dead, DeadLetterTopic: "dead"})
		filter := func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				if string(m.Payload) == "skip" {
					return nil, nil
				}
				return next(m)
			}
		}
		nameless, skipped := delivery(""), delivery("")
		nameless.Header, skipped.Header, skipped.Payload = nil, nil, []byte("skip")
		s := newSource(p, nameless)
		stop := over(t, s, func(*message.Message) error { return nil }, filter, oncewatermill.Middleware(p))
		synctest.Wait()
		s.queue <- skipped
		synctest.Wait()
		stop()
		s.want(t, consumer.Ack, consumer.Ack)
		if got := dead.Only(t); string(got.Payload) == "skip" {
			t.Errorf("%q is a dead letter, want that which was not left out", got.Payload)
		}
	})
}

// failingOnce publishes nothing the first time.
type failingOnce struct {
	fails bool
	sent  []*message.Message
}

func (f *failingOnce) Publish(_ string, messages ...*message.Message) error {
	if f.fails {
		f.fails = false
		return errors.New("no broker")
	}
	f.sent = append(f.sent, messages...)
	return nil
}

func (*failingOnce) Close() error { return nil }

// One that was acknowledged too early was not refused by anybody: its handler runs.
func TestMiddleware_MessageThatWasAcknowledgedOutsideOfTheGuardRuns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, log := logged(t, consumer.Config{})
		s, h := newSource(p, delivery("a"), delivery("b")), &handler{}
		late := func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				m.Ack()
				<-time.After(time.Second)
				return next(m)
			}
		}
		stop := over(t, s, consuming(h.handle), late, oncewatermill.Middleware(p))
		<-time.After(time.Minute)
		stop()
		h.want(t, 2)
		if n := strings.Count(log.String(), "put nothing outside of the guard that acknowledges"); n != 1 {
			t.Errorf("said %d times, want once: %s", n, log)
		}
	})
}

func TestNew_RefusesWhatIsNil(t *testing.T) {
	t.Parallel()
	if _, err := oncewatermill.NewSubscriber((*source)(nil), "charge"); err == nil {
		t.Error("a Subscriber over a nil Source")
	}
	if _, err := oncewatermill.NewSubscriber(newSource(nil), "charge"); err == nil ||
		!strings.Contains(err.Error(), "Processor") {
		t.Errorf("over a Source without a Processor: %v", err)
	}
	if _, err := oncewatermill.StampDecorator((*flaky)(nil)); err == nil {
		t.Error("a nil publisher is decorated")
	}
	for name, build := range map[string]func(){
		"Middleware":    func() { oncewatermill.Middleware(nil) },
		"NewPublisher":  func() { oncewatermill.NewPublisher((*deadLetters)(nil)) },
		"FromPublisher": func() { oncewatermill.FromPublisher((*flaky)(nil)) },
	} {
		func() {
			defer func() {
				if said, _ := recover().(string); !strings.Contains(said, name) {
					t.Errorf("%s panics with %q, want it to name itself", name, said)
				}
			}()
			build()
		}()
	}
}

// A Router's name for a handler that is not its subscriber's costs a claim ahead of each message, and nobody would see.
func TestSubscriber_AHandlerWithTwoNamesIsAWarning(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p, log := logged(t, consumer.Config{})
		s, h := newSource(p, delivery("a"), delivery("b")), &handler{}
		r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		r.AddMiddleware(oncewatermill.Middleware(p))
		r.AddConsumerHandler("charge-0", "orders", subscriber(t, s), consuming(h.handle))
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-time.After(time.Minute)
		if err := errors.Join(r.Close(), <-ended); err != nil {
			t.Error(err)
		}
		h.want(t, 2)
		if n := strings.Count(log.String(), "two names"); n != 1 {
			t.Errorf("told %d times, want once:\n%s", n, log)
		}
	})
}
