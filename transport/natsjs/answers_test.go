package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// answering listens on a subject as a stream would.
func (b *bench) answering(t *testing.T, subject string, answer func(*nats.Msg)) {
	t.Helper()
	sub, err := b.js.Conn().Subscribe(subject, answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sub.Unsubscribe() })
	if err := b.js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
}

func to(subject string, ids ...string) (messages []producer.Message) {
	for _, id := range ids {
		messages = append(messages, producer.Message{ID: id, Topic: subject, Payload: []byte(id)})
	}
	return messages
}

func respond(t *testing.T, m *nats.Msg, answer string) {
	if err := m.Respond([]byte(answer)); err != nil {
		t.Error(err)
	}
}

func TestPublisher_AnswerThatComesTooLateIsNobodysElse(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 100 * time.Millisecond})
	var first *nats.Msg
	b.answering(t, "slow", func(m *nats.Msg) {
		if first == nil {
			first = m
			return
		}
		respond(t, first, `{"stream":"slow","seq":1}`) // while the second one is waited for
	})
	for _, id := range []string{"a", "b"} {
		f := failuresOf(t, b.pub.Publish(t.Context(), to("slow", id)...))[0]
		if !f.Unknown || !errors.Is(f.Err, jetstream.ErrAsyncPublishTimeout) {
			t.Errorf("%s: %+v, want it to be unknown because of the timeout", id, f)
		}
	}
}

func TestPublisher_SecondAnswerChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{MaxPending: 1})
	b.answering(t, "twice", func(m *nats.Msg) {
		respond(t, m, `{"stream":"twice","seq":1}`)
		respond(t, m, `{"error":{"code":400,"err_code":10054}}`)
		respond(t, m, `{"stream":"twice","seq":1,"duplicate": true}`)
	})
	for i := range 50 {
		messages := append(to("twice", fmt.Sprint("a", i), fmt.Sprint("b", i)), to("orders", fmt.Sprint("c", i))...)
		if err := b.pub.Publish(t.Context(), messages...); err != nil {
			t.Fatal(err)
		}
	}
	if n := b.pub.Duplicates(); n != 0 {
		t.Errorf("%d duplicates", n)
	}
}

// The messages that wait for room meanwhile arrive as they are.
func TestPublisher_WhereNobodyListensItTriesForHalfASecond(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{MaxPending: 1})
	began := time.Now()
	failures := failuresOf(t, b.pub.Publish(t.Context(), append(to("nowhere", "x"), orders(2)...)...))
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("it took %v", took)
	}
	if f := failures[0]; len(failures) != 1 || f.ID != "x" || !f.Unknown || !errors.Is(f.Err, jetstream.ErrNoStreamResponse) {
		t.Errorf("%+v, want x alone, unknown because no stream answered", failures)
	}
	wantOnce(t, b.stored(t, "orders"), 2)
}

func TestPublisher_WhoComesInTimeGetsTheMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	sent := b.js.Conn().Stats().OutMsgs
	ended := make(chan error, 1)
	go func() { ended <- b.pub.Publish(context.Background(), to("late", "a")...) }()
	until(t, "the first try", func() bool { return b.js.Conn().Stats().OutMsgs > sent })
	b.answering(t, "late", func(m *nats.Msg) {
		if string(m.Data) != "a" || m.Header.Get(producer.HeaderID) != "a" {
			t.Errorf("got %q with header %v", m.Data, m.Header)
		}
		respond(t, m, `{"stream":"late","seq":1}`)
	})
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestPublisher_WhatIsGivenUpMakesRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{MaxPending: 2, AckTimeout: time.Minute})
	b.stream(t, jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if n := len(failuresOf(t, b.pub.Publish(ctx, to("quiet", "a", "b")...))); n != 2 {
		t.Errorf("%d failures, want 2", n)
	}
	soon, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	if err := b.pub.Publish(soon, orders(5)...); err != nil {
		t.Error(err)
	}
}

func TestPublisher_BrokenConnectionEndsTheWait(t *testing.T) {
	t.Parallel()
	lose := func(b *bench) { b.server.Shutdown() }
	hangUp := func(b *bench) { b.js.Conn().Close() }
	for name, tc := range map[string]struct {
		maxPending int
		sever      func(*bench)
		want       error
	}{
		"lost while answers are awaited":   {2, lose, nats.ErrDisconnected},
		"closed while answers are awaited": {2, hangUp, nats.ErrConnectionClosed},
		"closed while room is awaited":     {1, hangUp, nats.ErrConnectionClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, natsjs.PublisherConfig{MaxPending: tc.maxPending, AckTimeout: time.Hour})
			arrived := make(chan struct{}, 2)
			b.answering(t, "quiet", func(*nats.Msg) { arrived <- struct{}{} })
			ended := make(chan error, 1)
			go func() { ended <- b.pub.Publish(context.Background(), to("quiet", "a", "b")...) }()
			for range tc.maxPending {
				<-arrived
			}
			tc.sever(b)
			select {
			case err := <-ended:
				failures := failuresOf(t, err)
				for _, f := range failures {
					if !f.Unknown || !errors.Is(f.Err, tc.want) {
						t.Errorf("%+v, want unknown because of %v", f, tc.want)
					}
				}
				if len(failures) != 2 {
					t.Errorf("%d failures, want 2", len(failures))
				}
			case <-time.After(longWait):
				t.Error("it waits for answers that cannot come")
			}
		})
	}
}

func TestPublisher_MissingRightIsNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rights server.Permissions
		denied string
	}{
		"to subscribe to answers": {server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"_INBOX.>"}}}, "_INBOX."},
		"to publish":              {server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"orders"}}}, `"orders"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Start(t, func(o *server.Options) {
				o.Users = []*server.User{{Username: "limited", Password: "limited", Permissions: &tc.rights}}
			})
			quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
			pub, err := natsjs.NewPublisher(s.JetStream(nats.UserInfo("limited", "limited"), quiet), natsjs.PublisherConfig{AckTimeout: 200 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			f := failuresOf(t, pub.Publish(t.Context(), orders(1)...))[0]
			for begun := time.Now(); !errors.Is(f.Err, nats.ErrPermissionViolation) && time.Since(begun) < longWait; {
				f = failuresOf(t, pub.Publish(t.Context(), orders(1)...))[0] // the server's answer to the one before tells
			}
			if !f.Unknown || !errors.Is(f.Err, jetstream.ErrAsyncPublishTimeout) || !errors.Is(f.Err, nats.ErrPermissionViolation) || !strings.Contains(f.Err.Error(), tc.denied) {
				t.Errorf("%+v, want unknown, and the right that is missing", f)
			}
		})
	}
}

// A jam is a way to connect on which nothing can be written any more, once it is closed.
type jam struct {
	closed  atomic.Bool
	waiting chan struct{} // closed when somebody waits to write
	opened  chan struct{}
	once    sync.Once
}

func (j *jam) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return jammed{conn, j}, err
}

type jammed struct {
	net.Conn
	jam *jam
}

func (c jammed) Write(b []byte) (int, error) {
	if c.jam.closed.Load() {
		c.jam.once.Do(func() { close(c.jam.waiting) })
		<-c.jam.opened
	}
	return c.Conn.Write(b)
}

func TestPublisher_ContextEndsTheWaitAlthoughNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	j := &jam{waiting: make(chan struct{}), opened: make(chan struct{})}
	pub, err := natsjs.NewPublisher(b.server.JetStream(nats.SetCustomDialer(j)), natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{}, 2)
	b.answering(t, "quiet", func(*nats.Msg) { arrived <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, other := make(chan error, 1), make(chan error, 1)
	go func() { ended <- pub.Publish(ctx, to("quiet", "a")...) }()
	<-arrived
	j.closed.Store(true)
	go func() { other <- pub.Publish(ctx, to("quiet", "b")...) }()
	<-j.waiting
	cancel()
	select {
	case err := <-ended:
		if f := failuresOf(t, err)[0]; !f.Unknown || !errors.Is(f.Err, context.Canceled) {
			t.Errorf("%+v, want unknown because of the context", f)
		}
	case <-time.After(longWait / 3):
		t.Error("it waits for the connection")
	}
	close(j.opened)
	<-other
}

func TestPublisher_BreakBetweenCallsIsNotHeldAgainstTheNext(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	conn := b.js.Conn()
	for i := range 5 {
		if err := b.pub.Publish(t.Context(), to("orders", fmt.Sprint("before", i))...); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			breaks := conn.Stats().Reconnects
			if err := conn.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
			until(t, "the connection", func() bool { return conn.IsConnected() && conn.Stats().Reconnects > breaks })
		}
		if err := b.pub.Publish(t.Context(), to("orders", fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i), fmt.Sprint("d", i))...); err != nil {
			t.Error(err)
		}
	}
}

func TestPublisher_BrokenConnectionEndsAllCalls(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: time.Hour})
	const calls = 5
	arrived, ended := make(chan struct{}, calls), make(chan error, calls)
	b.answering(t, "quiet", func(*nats.Msg) { arrived <- struct{}{} })
	for i := range calls {
		go func() { ended <- b.pub.Publish(context.Background(), to("quiet", fmt.Sprint(i))...) }()
	}
	for range calls {
		<-arrived
	}
	b.server.Shutdown()
	for range calls {
		select {
		case err := <-ended:
			if f := failuresOf(t, err)[0]; !f.Unknown || !errors.Is(f.Err, nats.ErrDisconnected) {
				t.Errorf("%+v, want unknown because the connection is lost", f)
			}
		case <-time.After(longWait):
			t.Fatal("a call waits for an answer that cannot come")
		}
	}
}

// The server refuses a subscription beyond its limit, tells only the connection so, and does not make up for it.
func TestPublisher_RefusedSubscriptionToAnswersIsMadeAgain(t *testing.T) {
	t.Parallel()
	const limit = 5
	s := natstest.Start(t, func(o *server.Options) { o.MaxSubs = limit })
	b := &bench{server: s, js: s.JetStream(nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))}
	b.stream(t, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}})
	pub, err := natsjs.NewPublisher(b.js, natsjs.PublisherConfig{AckTimeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var others []*nats.Subscription
	for range limit {
		sub, err := b.js.Conn().SubscribeSync("others")
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, sub)
	}
	f := failuresOf(t, pub.Publish(t.Context(), orders(1)...))[0]
	for begun := time.Now(); !errors.Is(f.Err, nats.ErrMaxSubscriptionsExceeded) && time.Since(begun) < longWait; {
		f = failuresOf(t, pub.Publish(t.Context(), orders(1)...))[0] // the server's answer to the one before tells
	}
	if !f.Unknown || !errors.Is(f.Err, jetstream.ErrAsyncPublishTimeout) || !errors.Is(f.Err, nats.ErrMaxSubscriptionsExceeded) {
		t.Errorf("%+v, want unknown, and what the server has refused", f)
	}
	for _, sub := range others {
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "acknowledgements", func() bool { return pub.Publish(t.Context(), orders(2)...) == nil })
	wantOnce(t, b.stored(t, "orders"), 2)
}

// A slow server only looks like a refused subscription: nothing that waits meanwhile is given up.
func TestPublisher_AnswersToAReplacedSubscriptionAreHeard(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: time.Minute})
	asked := make(chan *nats.Msg, 2)
	b.answering(t, "slow", func(m *nats.Msg) { asked <- m })
	conn := b.js.Conn()
	first := make(chan error, 1)
	go func() { first <- b.pub.Publish(context.Background(), to("slow", "a")...) }()
	slow := <-asked
	subscriptions := conn.NumSubscriptions()
	hasty, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- b.pub.Publish(hasty, to("slow", "b")...) }()
	<-asked
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("second: %v", err)
	}
	if err := b.pub.Publish(t.Context(), orders(1)...); err != nil {
		t.Error(err)
	}
	if n := conn.NumSubscriptions(); n != subscriptions+1 {
		t.Errorf("%d subscriptions, want %d and that which replaces the second call's", n, subscriptions)
	}
	respond(t, slow, `{"stream":"slow","seq":1}`)
	if err := <-first; err != nil {
		t.Errorf("first: %v", err)
	}
	for range 10 {
		if err := b.pub.Publish(t.Context(), orders(2)...); err != nil {
			t.Error(err)
		}
	}
	if n := conn.NumSubscriptions(); n != subscriptions+1 {
		t.Errorf("%d subscriptions, want %d: one for each call that there was at once", n, subscriptions+1)
	}
}
