package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
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
)

// A source delivers what it is given, all at once, and carries decisions out as the contract says.
type source struct {
	queue chan consumer.Delivery
	grace time.Duration
	stops int   // so many calls of Run fail at once
	check error // of Check

	mu        sync.Mutex
	runs      int
	decisions []consumer.Decision
	givenBack []string
}

func newSource(deliveries ...consumer.Delivery) *source {
	s := &source{queue: make(chan consumer.Delivery, 100), grace: 10 * time.Second}
	for _, d := range deliveries {
		s.queue <- d
	}
	return s
}

func (s *source) Check(context.Context, string) error { return s.check }

func (s *source) Run(ctx context.Context, _ string, handle func(context.Context, consumer.Delivery) consumer.Decision) error {
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

func (s *source) deliver(ctx, each context.Context, d consumer.Delivery, handle func(context.Context, consumer.Delivery) consumer.Decision) {
	for d.Count = 1; ; d.Count++ {
		decision := handle(each, d)
		s.mu.Lock()
		s.decisions = append(s.decisions, decision)
		s.mu.Unlock()
		if decision.Action != consumer.RetryLater {
			return
		}
		select {
		case <-time.After(decision.Delay):
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

// over starts a Router with the middleware over a source, with a handler.
func over(t *testing.T, s *source, p *consumer.Processor, handle message.NoPublishHandlerFunc) (stop func()) {
	t.Helper()
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	if p != nil {
		r.AddMiddleware(p.Middleware)
	}
	r.AddConsumerHandler("charge", "orders", consumer.Subscriber(s), handle)
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
		s := newSource(delivery("a"), foreign, consumer.Delivery{Topic: "orders"})
		var got []string
		var mu sync.Mutex
		stop := over(t, s, nil, func(m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprintf("%s|%s|%s", m.UUID, m.Metadata.Get("color"), m.Payload))
			return nil
		})
		synctest.Wait()
		stop()
		slices.Sort(got)
		if want := []string{"a|blue|order a", "from-watermill|red|x", "||"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		s.want(t, consumer.Ack, consumer.Ack, consumer.Ack)
	})
}

// What the middleware decides reaches the source as it is: a Router could only nack.
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
				s := newSource(delivery("a"))
				p := newProcessor(t, newStore(t), consumer.Config{Policy: c.policy})
				began := time.Now()
				stop := over(t, s, p, func(*message.Message) error { return c.err })
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
		s := newSource(delivery("a"))
		stop := over(t, s, newProcessor(t, lossy{newStore(t)}, consumer.Config{}), func(*message.Message) error { return nil })
		synctest.Wait()
		stop()
		s.want(t, consumer.Leave)
	})
}

func TestSubscriber_DownStoreSaysThatTheDeliveryIsToBeKept(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(delivery("a"))
		p := newProcessor(t, deadStore{newStore(t)}, consumer.Config{Hold: consumer.NoHold})
		stop := over(t, s, p, func(*message.Message) error { t.Error("the handler ran"); return nil })
		synctest.Wait()
		stop()
		s.want(t, consumer.RetryLater)
		if d := s.decisions[0]; !d.Keep || d.Delay <= 0 {
			t.Errorf("decision %+v, want Keep, and a delay", d)
		}
	})
}

type deadStore struct{ dedupstore.Store }

func (deadStore) Claim(context.Context, dedupstore.Request) (dedupstore.Answer, error) {
	return dedupstore.Answer{}, errors.New("connection refused")
}

// Without the middleware a nack is not the broker's bare nak, and grows.
func TestSubscriber_NacksWithoutADecisionAreDelayedMoreAndMore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(delivery("a"))
		runs := 0
		stop := over(t, s, nil, func(*message.Message) error {
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
				s := newSource(delivery("a"), delivery("b"))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				sub := consumer.Subscriber(s)
				messages, err := sub.Subscribe(ctx, "orders")
				if err != nil {
					t.Fatal(err)
				}
				taken := <-messages // the other one waits for a reader
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
		s := newSource(delivery("a"))
		sub := consumer.Subscriber(s)
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
		s := newSource(delivery("a"))
		s.stops = 5
		stop := over(t, s, nil, func(*message.Message) error { return nil })
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
		s := newSource()
		s.check = errors.New("no stream")
		if _, err := consumer.Subscriber(s).Subscribe(t.Context(), "orders"); !errors.Is(err, s.check) {
			t.Errorf("error %v, want the source's", err)
		}
	})
}

// Deliveries that share Holds wait for busy keys as many as it allows; the others come back at once.
func TestProcess_HoldsAreBoundedInNumber(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Hold: time.Minute})
		release := make(chan struct{})
		var work sync.WaitGroup
		d := delivery("busy")
		d.Handler, d.Holds = "charge", oncemill.NewHolds(3)
		work.Go(func() {
			p.Process(t.Context(), d, func(context.Context) error { <-release; return nil })
		})
		synctest.Wait()
		var mu sync.Mutex
		var back, acked int
		for range 10 {
			work.Go(func() {
				decision := p.Process(t.Context(), d, func(context.Context) error { t.Error("the handler ran twice"); return nil })
				mu.Lock()
				defer mu.Unlock()
				switch decision.Action {
				case consumer.RetryLater:
					back++
				case consumer.Ack:
					acked++
				}
			})
		}
		synctest.Wait()
		if back != 7 {
			t.Errorf("%d deliveries came back at once, want 7", back)
		}
		close(release)
		work.Wait()
		if acked != 3 {
			t.Errorf("%d deliveries held until the outcome, want 3", acked)
		}
		if decision := p.Process(t.Context(), d, nil); decision.Action != consumer.Ack {
			t.Errorf("decision %v for a duplicate", decision)
		}
	})
}

// Watermill's own PoisonQueue takes each error for poison. What is only to be tried again, or waits for its store, is not lost
// by that: it comes again. What the guard has rejected for good is the poison queue's.
func TestSubscriber_WhatHasToComeAgainDoesSoThoughAnOuterMiddlewareAcknowledgesIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, poison := newSource(delivery("a"), delivery("b")), nowhere{}
		stock, err := middleware.PoisonQueue(poison, "poison")
		if err != nil {
			t.Fatal(err)
		}
		p := newProcessor(t, newStore(t), consumer.Config{})
		runs := map[string]int{}
		var mu sync.Mutex
		stop := over(t, s, nil, consuming(stock(p.Middleware(func(m *message.Message) ([]*message.Message, error) {
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

// A middleware outside that calls again until the message is done has not swallowed anything.
func TestSubscriber_RetryOutsideOfTheGuardThatEndsWellIsAnAck(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(delivery("a"))
		p := newProcessor(t, newStore(t), consumer.Config{})
		h := &handler{then: func(_ *message.Message, n int) ([]*message.Message, error) {
			if n == 1 {
				return nil, errors.New("not yet")
			}
			return nil, nil
		}}
		retry := middleware.Retry{MaxRetries: 10, InitialInterval: time.Second}
		stop := over(t, s, nil, consuming(retry.Middleware(p.Middleware(h.handle))))
		<-time.After(time.Minute)
		stop()
		h.want(t, 2)
		s.want(t, consumer.Ack)
	})
}

// The last word of a guard that was called again may be an ack, and its outputs are published after it.
func TestSubscriber_OutputsThatCannotBePublishedAfterARetryOutsideOfTheGuardAreNotLost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newSource(delivery("a"))
		p := newProcessor(t, newStore(t), consumer.Config{})
		h := &handler{then: func(_ *message.Message, n int) ([]*message.Message, error) {
			if n == 1 {
				return nil, errors.New("not yet")
			}
			return []*message.Message{message.NewMessage("receipt", nil)}, nil
		}}
		r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		retry := middleware.Retry{MaxRetries: 10, InitialInterval: time.Second}
		r.AddMiddleware(retry.Middleware, p.Middleware)
		r.AddHandler("charge", "orders", consumer.Subscriber(s), "receipts", &flaky{Publisher: nowhere{}, fails: 1}, h.handle)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-time.After(time.Minute)
		if err := errors.Join(r.Close(), <-ended); err != nil {
			t.Error(err)
		}
		h.want(t, 2)
		s.want(t, consumer.RetryLater, consumer.Ack)
	})
}

// What has been acknowledged stays so, whatever becomes of it.
func TestSubscriber_MessageThatWasAcknowledgedBeforeItFailedDoesNotComeAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, want := newSource(), []consumer.Action(nil)
		for i := range 50 { // it is a race whether the failure is seen together with the ack
			s.queue <- delivery(fmt.Sprintf("m%d", i))
			want = append(want, consumer.Ack)
		}
		p := newProcessor(t, newStore(t), consumer.Config{})
		stop := over(t, s, nil, consuming(middleware.InstantAck(p.Middleware(func(*message.Message) ([]*message.Message, error) {
			return nil, errors.New("no answer")
		}))))
		<-time.After(time.Minute)
		stop()
		s.want(t, want...)
	})
}

// revoking is a source whose delivery is taken away before anybody takes it.
type revoking struct{ decided chan consumer.Decision }

func (revoking) Check(context.Context, string) error { return nil }

func (r revoking) Run(ctx context.Context, _ string, handle func(context.Context, consumer.Delivery) consumer.Decision) error {
	each, revoke := context.WithCancel(context.WithoutCancel(ctx))
	time.AfterFunc(time.Second, revoke)
	r.decided <- handle(each, delivery("a"))
	<-ctx.Done()
	return nil
}

func TestSubscriber_DeliveryThatIsTakenAwayBeforeItIsHandedOverDoesNotWaitForAReader(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := revoking{make(chan consumer.Decision, 1)}
		sub := consumer.Subscriber(s)
		if _, err := sub.Subscribe(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		if d := <-s.decided; d.Action != consumer.RetryLater || !d.Keep {
			t.Errorf("decision %+v, want to keep it", d)
		}
		sub.Close()
	})
}

// brokenOnce is a publisher that fails the first time.
type brokenOnce struct{ calls int }

func (b *brokenOnce) Publish(string, ...*message.Message) error {
	if b.calls++; b.calls == 1 {
		return errors.New("broker is away")
	}
	return nil
}

func (*brokenOnce) Close() error { return nil }

// The middleware has told the source to end the message, but what should have taken it did not.
func TestPoisonQueue_ThatCannotPublishDoesNotLoseTheMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, poison := newSource(delivery("a")), &brokenOnce{}
		mws, err := consumer.Chain(consumer.PoisonQueue(poison, "poison"), consumer.Guarded(newProcessor(t, newStore(t), consumer.Config{})))
		if err != nil {
			t.Fatal(err)
		}
		r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		r.AddMiddleware(mws...)
		r.AddConsumerHandler("charge", "orders", consumer.Subscriber(s), func(*message.Message) error {
			return oncemill.Permanent(errors.New("never"))
		})
		ended := make(chan error, 1)
		go func() { ended <- r.Run(context.Background()) }()
		<-r.Running()
		<-time.After(time.Minute)
		s.want(t, consumer.RetryLater, consumer.Ack)
		if poison.calls != 2 {
			t.Errorf("%d calls of the poison queue's publisher, want 2", poison.calls)
		}
		if err := errors.Join(r.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
}

// Some brokers keep the context of a produced message, and with it what steers the message that it was produced for.
func TestMiddleware_PassageOfAnotherMessageIsNotUsed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		p := newProcessor(t, newStore(t), consumer.Config{Handler: "charge", Extractors: []producer.Extractor{producer.ExtractMessageID, producer.ExtractPosition}})
		source := newSource(consumer.Delivery{UUID: "a", Header: producer.Header{producer.HeaderID: "a"}, Topic: "orders", Position: "7"})
		sub := consumer.Subscriber(source)
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		a := <-messages
		var kept context.Context
		if _, err := p.Middleware(func(m *message.Message) ([]*message.Message, error) {
			kept = m.Context() //nolint:fatcontext // as such brokers do
			return nil, nil
		})(a); err != nil {
			t.Fatal(err)
		}
		b := message.NewMessage("", nil) // no ID but, perhaps, the position of the other one
		b.SetContext(context.WithoutCancel(kept))
		began := time.Now()
		_, err = p.Middleware((&handler{}).handle)(b)
		as[*consumer.MissingIDError](t, err)
		if time.Since(began) < time.Second {
			t.Errorf("nacked after %v, want a pause", time.Since(began))
		}
		a.Ack() // what was decided about b would stand against it
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
		if len(source.decisions) != 1 || source.decisions[0].Action != consumer.Ack {
			t.Errorf("decisions %v, want an ack", source.decisions)
		}
	})
}

// Logs and mocks print contexts while others use them. What is printed is no content of messages.
func TestSubscriber_ContextOfAMessageCanBePrinted(t *testing.T) {
	virtual(t, func(t *testing.T) {
		sub := consumer.Subscriber(newSource(consumer.Delivery{UUID: "o1", Header: producer.Header{"authorization": "secret"}}))
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

func TestSubscriber_SecondSubscriptionOfATopicIsAWarning(t *testing.T) { // not parallel: the logger is the process's
	var log bytes.Buffer
	usual, output := slog.Default(), stdlog.Writer()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer func() {
		slog.SetDefault(usual)
		stdlog.SetOutput(output)
	}()
	subscriber := consumer.Subscriber(newSource())
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
		t.Errorf("of subscriptions that share nothing: %s", &log)
	}
	subscribe(t.Context(), "orders")
	if !strings.Contains(log.String(), "subscribed to twice") {
		t.Errorf("nobody was told: %q", &log)
	}
	if err := subscriber.Close(); err != nil {
		t.Error(err)
	}
}
