package stocknats_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/transport/stocknats"
)

// ends are the ways in which a service is stopped.
var ends = map[string]func(*service){
	"Close":   func(s *service) { s.Close() },
	"context": func(s *service) { s.cancel() },
}

// eachEnd runs a test with both adapters and both ways to stop.
func eachEnd(t *testing.T, test func(t *testing.T, adapter string, stop func(*service))) {
	each(t, func(t *testing.T, adapter string) {
		for name, stop := range ends {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, adapter, stop)
			})
		}
	})
}

func TestStock_FinishedHandlersAreAckedOnShutdown(t *testing.T) {
	t.Parallel()
	eachEnd(t, func(t *testing.T, adapter string, stop func(*service)) {
		started, stopping := make(chan struct{}), make(chan struct{})
		var cancelled error
		r := newRig(t, setup{adapter: adapter, handle: func(msg *message.Message, _ int) error {
			close(started)
			<-stopping
			select { // longer than the shutdown needs to reach everybody
			case <-time.After(500 * time.Millisecond):
			case <-msg.Context().Done():
			}
			cancelled = msg.Context().Err()
			return nil
		}})
		s := r.serve()
		r.publish("o1")
		within(t, "the handler", started)
		close(stopping)
		stop(s)
		within(t, "the Router", s.ended)
		if cancelled != nil {
			t.Errorf("the handler's context ended: %v", cancelled)
		}
		if info := r.info(); info.AckFloor.Stream != 1 || info.NumAckPending != 0 {
			t.Errorf("ack floor %d, %d acks pending; want 1 and 0", info.AckFloor.Stream, info.NumAckPending)
		}
		r.wantRunsOnce([]string{"o1"})
	})
}

func TestStock_ShutdownWithABacklogNeitherPanicsNorLosesNorRepeats(t *testing.T) {
	t.Parallel()
	eachEnd(t, func(t *testing.T, adapter string, stop func(*service)) {
		var running sync.WaitGroup
		r := newRig(t, setup{adapter: adapter, ackWait: time.Second, maxPending: 8, handle: func(msg *message.Message, _ int) error {
			running.Add(1)
			defer running.Done()
			<-time.After(3 * time.Millisecond)
			return msg.Context().Err()
		}})
		names := numbered(full(600, 120))
		r.publish(names...)
		for range full(10, 3) {
			s, before := r.serve(), r.deliveries()
			until(t, "some messages", func() bool { return r.deliveries() >= before+20 })
			stop(s)
			within(t, "the Router", s.ended)
			running.Wait()
		}
		r.serve()
		r.settled()
		r.wantRunsOnce(names)
	})
}

func TestStock_WhatWasTakenIsGivenBackOnShutdown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		var taken atomic.Int32                                                                                          // that the server has sent it says less
		r := newRig(t, setup{adapter: adapter, maxPending: 1, decode: func([]byte) error { taken.Add(1); return nil }}) // 30 s of ack wait
		r.publish("o1")
		first := r.subscriber()
		if _, err := first.Subscribe(t.Context(), "orders"); err != nil { // nobody receives
			t.Fatal(err)
		}
		until(t, "the message to be taken", func() bool { return taken.Load() > 0 && r.info().NumAckPending == 1 })
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		closed := time.Now()
		r.serve()
		r.settled()
		if d := r.times("o1")[0].Sub(closed); d > 10*time.Second {
			t.Errorf("delivered %v after the shutdown of who had it", d)
		}
	})
}

func TestStock_WhatComesDuringADrainIsGivenBackAtItsEnd(t *testing.T) {
	t.Parallel()
	started, release := make(chan struct{}), make(chan struct{})
	r := newRig(t, setup{adapter: "nats", subscribers: 2, handle: func(msg *message.Message, _ int) error {
		if string(msg.Payload) == "o1" {
			close(started)
			<-release
		}
		return nil
	}})
	s := r.serve()
	r.publish("o1")
	within(t, "the handler", started)
	s.cancel()
	until(t, "the drain", func() bool {
		r.publish("o2")                    // until one comes too late
		return r.info().NumAckPending >= 2 // the server may know of one only when another is out
	})
	close(release)
	within(t, "the Router", s.ended)
	ended := time.Now()
	r.serve()
	r.settled()
	if d := time.Since(ended); d > 10*time.Second { // the ack wait is 30 s
		t.Errorf("all settled %v after the drain", d)
	}
	r.wantRunsOnce([]string{"o1", "o2"})
}

func TestStock_MessagesOnTheirWayAtTheEndNeitherPanicNorAreLost(t *testing.T) {
	t.Parallel()
	// What the client of a push consumer has, and the adapter has not, comes back at its ack deadline.
	for adapter, names := range map[string][]string{"jetstream": {"o1", "o2"}, "nats": {"o1"}} {
		for i := range 6 { // the adapters by themselves panic every other time
			t.Run(fmt.Sprint(adapter, " ", i), func(t *testing.T) {
				t.Parallel()
				decoding := make(chan struct{}, 10)
				r := newRig(t, setup{adapter: adapter, decode: func([]byte) error {
					decoding <- struct{}{}
					<-time.After(150 * time.Millisecond)
					return nil
				}})
				r.publish(names...)
				sub := r.subscriber()
				ctx, cancel := context.WithCancel(t.Context())
				messages, err := sub.Subscribe(ctx, "orders")
				if err != nil {
					t.Fatal(err)
				}
				<-decoding
				cancel()
				for range messages {
					t.Error("handed over after the end")
				}
				ended := time.Now()
				<-time.After(400 * time.Millisecond) // the adapter's closed flag would hide the danger
				if err := sub.Close(); err != nil {
					t.Error(err)
				}
				r.serve()
				r.settled()
				if d := time.Since(ended); d > 10*time.Second { // the ack wait is 30 s
					t.Errorf("all settled %v after the end", d)
				}
				r.wantRunsOnce(names)
			})
		}
	}
}

func TestStock_GraceBoundsTheDrain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, config: stocknats.Config{Grace: 200 * time.Millisecond}})
		sub := r.subscriber()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		messages, err := sub.Subscribe(ctx, "orders")
		if err != nil {
			t.Fatal(err)
		}
		r.publish("o1")
		msg := <-messages
		began := time.Now()
		cancel()
		if _, open := <-messages; open {
			t.Error("handed over after the end")
		}
		if d := time.Since(began); d < 200*time.Millisecond || d > 10*time.Second {
			t.Errorf("the drain took %v, want the grace", d)
		}
		within(t, "the message's context", msg.Context().Done())
		msg.Ack() // nobody listens any more
		if info := r.info(); info.NumAckPending != 1 {
			t.Errorf("%d acks pending, want the message left alone", info.NumAckPending)
		}
		sub.Close()
	})
}

func TestStock_OneSubscriptionEndsWithoutTheOthers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter})
		sub := r.subscriber()
		ctx, cancel := context.WithCancel(t.Context())
		first, err := sub.Subscribe(ctx, "orders")
		if err != nil {
			t.Fatal(err)
		}
		second, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		for range first {
			t.Error("handed over after the end")
		}
		r.publish("o1")
		(<-second).Ack()
		r.settled()
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		if _, err := sub.Subscribe(t.Context(), "orders"); err == nil {
			t.Error("Subscribe after Close succeeded")
		}
	})
}

// Package nats does not hear of it that its consumer was deleted or has other settings, and waits in silence.
func TestStock_SubscriptionWhoseConsumerIsDeletedOrLosesMessagesEnds(t *testing.T) {
	t.Parallel()
	change := func(edit func(*jetstream.ConsumerConfig)) func(*rig) {
		return func(r *rig) {
			config := r.info().Config
			edit(&config)
			if config.DeliverSubject == "" {
				r.must(r.js.UpdateConsumer(r.t.Context(), "orders", config))
				return
			}
			r.must(r.js.UpdatePushConsumer(r.t.Context(), "orders", config))
		}
	}
	for name, tc := range map[string]struct {
		adapters []string
		happens  func(*rig)
		says     string
	}{
		"deleted": {[]string{"nats"}, func(r *rig) {
			if err := r.js.DeleteConsumer(r.t.Context(), "orders", "billing"); err != nil {
				r.t.Fatal(err)
			}
		}, "the consumer is gone"},
		"stream deleted": {[]string{"nats"}, func(r *rig) {
			if err := r.js.DeleteStream(r.t.Context(), "orders"); err != nil {
				r.t.Fatal(err)
			}
		}, "the consumer is gone"},
		"made again": {[]string{"nats"}, func(r *rig) { // otherwise, as by somebody who has lost its settings
			config := r.info().Config
			config.DeliverSubject = "elsewhere"
			if err := r.js.DeleteConsumer(r.t.Context(), "orders", "billing"); err != nil {
				r.t.Fatal(err)
			}
			r.must(r.js.CreatePushConsumer(r.t.Context(), "orders", config))
		}, "delivers to"},
		"gives messages up": {[]string{"nats", "jetstream"}, change(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 }), "has MaxDeliver 3"},
		"loses payloads":    {[]string{"nats", "jetstream"}, change(func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }), "has HeadersOnly"},
		"answers groups": {[]string{"jetstream"}, change(func(c *jetstream.ConsumerConfig) { // which the client or the look meets first
			c.PriorityPolicy, c.PriorityGroups = jetstream.PriorityPolicyOverflow, []string{"a"}
		}), "changed so that"},
	} {
		for _, adapter := range tc.adapters {
			t.Run(name+"/"+adapter, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, setup{adapter: adapter})
				sub := r.subscriber()
				defer sub.Close()
				stocknats.LookEvery(sub, 20*time.Millisecond)
				messages, err := sub.Subscribe(t.Context(), "orders")
				if err != nil {
					t.Fatal(err)
				}
				r.publish("o")
				msg := <-messages
				msg.Ack()
				r.settled()
				change(func(c *jetstream.ConsumerConfig) { c.Description = "charges orders" })(r)
				tc.happens(r)
				select {
				case _, open := <-messages:
					if open {
						t.Error("a message came")
					}
				case <-time.After(patience):
					t.Error("the subscription goes on")
				}
				between := name == "made again" && r.log.has("the consumer is gone") // two looks can come in between
				if !r.log.has("level=ERROR") || !r.log.has(tc.says) && !between {
					t.Errorf("log:\n%s", r.log.b.String())
				}
			})
		}
	}
}

// Rights and limits may be less after a reconnect, of which only the connection hears.
func TestNATS_SubscriptionThatIsRefusedAfterAReconnectEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "nats"})
	var options *server.Options
	few := &server.User{Username: "few", Password: "few"}
	r.server = testserver.NATS(t, func(o *server.Options) {
		options = o
		o.Users = []*server.User{few}
	})
	nc := r.server.Connect(nats.UserInfo("few", "few"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	r.must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}))
	sub, err := stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{QueueGroupPrefix: "billing", JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing"}},
		stocknats.Config{Logger: slog.New(slog.NewTextHandler(&r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	stocknats.LookEvery(sub, 50*time.Millisecond)
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	r.must(js.Publish(t.Context(), "orders", nil))
	msg := <-messages
	msg.Ack()
	<-msg.Context().Done()
	r.server.Shutdown()
	few.Permissions = &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}}
	options.Users = []*server.User{few}
	r.server.Restart()
	select {
	case <-messages:
	case <-time.After(patience):
		t.Error("the subscription goes on")
	}
	if !r.log.has("level=ERROR") || !r.log.has("knows of no subscription") {
		t.Errorf("log:\n%s", r.log.b.String())
	}
}

// A member of a cluster that has not made its Raft node yet answers besides the leader, with the config alone.
func TestNATS_AnswerOfAMemberThatIsStartingEndsNothing(t *testing.T) {
	t.Parallel()
	s, _ := newStream(t)
	proxy := s.Connect()
	var starting atomic.Bool
	var looks atomic.Int32
	_, err := proxy.Subscribe("proxy.>", func(m *nats.Msg) {
		subject := "$JS.API." + strings.TrimPrefix(m.Subject, "proxy.")
		answer, err := proxy.Request(subject, m.Data, patience)
		if err != nil {
			return
		}
		data := string(answer.Data)
		if strings.HasPrefix(subject, "$JS.API.CONSUMER.") {
			if starting.Load() {
				looks.Add(1)
				data = strings.Replace(data, `"push_bound":true`, `"push_bound":false`, 1)
			} else {
				data = strings.Replace(data, "{", `{"cluster":{"leader":"one"},`, 1)
			}
		}
		_ = m.Respond([]byte(data))
	})
	if err == nil {
		err = proxy.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	sub, err := stocknats.NATS(s.Connect(), wmnats.SubscriberSubscriptionConfig{QueueGroupPrefix: "billing", JetStream: wmnats.JetStreamConfig{
		DurablePrefix: "billing", ConnectOptions: []nats.JSOpt{nats.APIPrefix("proxy")},
	}}, stocknats.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	stocknats.LookEvery(sub, 10*time.Millisecond)
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	starting.Store(true)
	for tick := time.NewTicker(5 * time.Millisecond); looks.Load() < 10; {
		select {
		case <-messages:
			t.Fatal("the subscription has ended")
		case <-tick.C:
		}
	}
}

// A server that is starting knows of no consumer yet, each time.
func TestStock_ConsumerThatWasMissedOnceIsNotGone(t *testing.T) {
	t.Parallel()
	down := errors.New("nobody answers")
	for name, tc := range map[string]struct {
		looks []error
		want  error
	}{
		"each time once":   {[]error{stocknats.ErrGone, nil, stocknats.ErrGone, nil}, nil},
		"nobody knows":     {[]error{stocknats.ErrGone, down, stocknats.ErrGone, down}, nil},
		"twice in a row":   {[]error{stocknats.ErrGone, nil, stocknats.ErrGone, stocknats.ErrGone, nil}, stocknats.ErrGone},
		"nobody ever says": {[]error{down, down, down}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := stocknats.Watch(ctx, func() error {
					if len(tc.looks) == 0 {
						cancel()
						return nil
					}
					found := tc.looks[0]
					tc.looks = tc.looks[1:]
					return found
				})
				if !errors.Is(err, tc.want) {
					t.Errorf("%v, want %v", err, tc.want)
				}
			})
		})
	}
}

func TestStock_SubscriptionThatCanGetNothingEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "jetstream"})
	for name, end := range map[string]func(nc *nats.Conn){
		"connection closed": func(nc *nats.Conn) { nc.Close() },
		"consumer deleted": func(*nats.Conn) {
			if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
				t.Error(err)
			}
		},
	} {
		nc := r.server.Connect()
		sub, err := stocknats.JetStream(nc, wmjetstream.SubscriberConfig{ResourceInitializer: stocknats.Durable(
			func(string) (string, jetstream.ConsumerConfig) {
				return "orders", jetstream.ConsumerConfig{Durable: "billing"}
			},
		)}, stocknats.Config{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the consumer to be asked", func() bool { return r.info().NumWaiting > 0 })
		end(nc)
		select {
		case _, open := <-messages:
			if open {
				t.Errorf("%s: a message came", name)
			}
		case <-time.After(patience):
			t.Errorf("%s: the subscription goes on", name)
		}
		sub.Close()
	}
}
