package natsjs_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer"
)

func TestWorker_DeletedConsumerEndsTheRun(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(*rig) error{
		"consumer": func(r *rig) error { return r.js.DeleteConsumer(r.t.Context(), "orders", "billing") },
		"stream":   func(r *rig) error { return r.js.DeleteStream(r.t.Context(), "orders") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.publish(1, oneKey)
			ended := make(chan error, 1)
			w := r.worker(succeed)
			go func() { ended <- w.Run(context.Background()) }()
			r.finishes(1)
			if err := remove(r); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) || !strings.Contains(err.Error(), `consumer "billing" of stream "orders" was deleted`) {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(longWait):
				t.Error("Run did not end")
			}
			if n := strings.Count(r.log.String(), "cannot be fetched"); n != 1 {
				t.Errorf("the trouble was logged %d times:\n%s", n, r.log.String())
			}
		})
	}
}

func TestWorker_ClosedConnectionEndsTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	ended := make(chan error, 1)
	w := r.worker(succeed)
	go func() { ended <- w.Run(context.Background()) }()
	r.finishes(1)
	r.js.Conn().Close()
	select {
	case err := <-ended:
		if !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(longWait):
		t.Error("Run did not end")
	}
}

func TestWorker_SurvivesRestartsOfTheServer(t *testing.T) {
	t.Parallel()
	n := full(3000, 300)
	r := newRig(t, jetstream.ConsumerConfig{AckWait: 2 * time.Second})
	r.config.MaxInFlight = 20
	r.publish(n, oneKey)
	stop := r.start(r.worker(func(context.Context, jetstream.Msg) error { lasts(5 * time.Millisecond); return nil }))
	for i := range full(5, 2) {
		r.finishes((i + 1) * n / 6)
		r.server.Shutdown()
		lasts(200 * time.Millisecond)
		r.server.Restart()
	}
	r.finishes(n)
	until(t, "all acks", func() bool {
		info, err := r.cons.Info(context.Background())
		return err == nil && info.AckFloor.Stream == uint64(n)
	})
	r.stops(stop)
	if _, runs := r.done(); runs != n {
		t.Errorf("%d runs of %d messages", runs, n)
	}
	if n := strings.Count(r.log.String(), "cannot be fetched"); n > 2*full(5, 2) {
		t.Errorf("the trouble was logged %d times:\n%s", n, r.log.String())
	}
}

func TestWorker_RunningHandlersSurviveARestartOfTheServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(5, oneKey)
	release := make(chan struct{})
	stop := r.start(r.worker(func(ctx context.Context, _ jetstream.Msg) error {
		<-release
		return ctx.Err()
	}))
	until(t, "five runs", func() bool { _, runs := r.done(); return runs == 5 })
	r.server.Shutdown()
	r.server.Restart()
	until(t, "the consumer", func() bool { _, err := r.cons.Info(t.Context()); return err == nil }) // else acks get lost
	close(release)
	r.finishes(5)
	r.stops(stop)
	r.acked(5)
	if info := r.info(); info.Delivered.Consumer != 5 {
		t.Errorf("%d deliveries of 5 messages", info.Delivered.Consumer)
	}
}

// A lonely consumer is one whose leader says that it has not heard of its two replicas for a minute.
type lonely struct {
	jetstream.Consumer
	alone atomic.Bool
	looks atomic.Int64 // while it was alone
}

func (l *lonely) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	if !l.alone.Load() {
		return l.Consumer.Info(ctx)
	}
	l.looks.Add(1)
	info := *l.CachedInfo()
	info.Cluster = &jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{{Name: "b", Active: time.Minute}, {Name: "c", Active: time.Minute}}}
	return &info, nil
}

// A leader that has lost its majority counts deliveries that it does not make: after trouble it is not asked for messages.
func TestWorker_LeaderWithoutAMajorityIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	cons := &lonely{Consumer: r.cons}
	r.cons = cons
	publish := func(id string) {
		t.Helper()
		msg := nats.NewMsg("orders.all")
		msg.Header.Set(producer.HeaderID, id)
		until(t, "the message to be in the stream", func() bool {
			_, err := r.js.PublishMsg(t.Context(), msg, jetstream.WithMsgID(id))
			return err == nil
		})
	}
	publish("o0")
	stop := r.start(r.worker(succeed))
	r.finishes(1)
	cons.alone.Store(true)
	r.server.Shutdown()
	until(t, "trouble", func() bool { return strings.Contains(r.log.String(), "cannot be fetched") })
	r.server.Restart()
	publish("o1")
	from := cons.looks.Load()
	until(t, "looks at the consumer", func() bool {
		finished, _ := r.done()
		return cons.looks.Load() > from+5 || finished > 1
	})
	info, err := cons.Consumer.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Delivered.Consumer != 1 {
		t.Errorf("%d deliveries, want that of the first message", info.Delivered.Consumer)
	}
	cons.alone.Store(false)
	r.finishes(2)
	r.stops(stop)
}

// What is in flight leaves no room for a request that would tell.
func TestWorker_ClosedConnectionEndsTheRunAlsoWithNoRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.MaxInFlight = 1
	r.publish(1, oneKey)
	ended := make(chan error, 1)
	w := r.worker(func(context.Context, jetstream.Msg) error {
		return oncemill.RetryAfter(time.Hour, errors.New("closed on Sundays"))
	})
	go func() { ended <- w.Run(context.Background()) }()
	until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
	r.js.Conn().Close()
	if err := await(t, ended); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run: %v", err)
	}
}

// What the connection keeps for the server's return is bounded, and not the worker's alone.
func TestWorker_MessagesInProgressDoNotFillTheBufferOfAConnectionThatIsAway(t *testing.T) {
	t.Parallel()
	const n, room = 40, 16 << 10
	r := newRig(t, jetstream.ConsumerConfig{AckWait: 500 * time.Millisecond})
	r.js = r.server.JetStream(nats.ReconnectBufSize(room), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	r.open(jetstream.ConsumerConfig{AckWait: 500 * time.Millisecond})
	r.publish(n, oneKey)
	release := make(chan struct{})
	stop := r.start(r.worker(func(context.Context, jetstream.Msg) error { <-release; return nil }))
	until(t, "the handlers", func() bool { _, runs := r.done(); return runs == n })
	r.server.Shutdown()
	lasts(3 * time.Second) // a tick is an eighth of one
	if err := r.js.Conn().Publish("somebody.elses", make([]byte, 1<<10)); err != nil {
		t.Errorf("somebody else cannot publish: %v", err)
	}
	close(release)
	r.finishes(n)
	r.server.Restart()
	until(t, "all acks", func() bool {
		info, err := r.cons.Info(context.Background())
		return err == nil && info.AckFloor.Stream == n
	})
	r.stops(stop)
	if log := r.log.String(); strings.Contains(log, "cannot be told") || strings.Contains(log, "could not be settled") {
		t.Errorf("log:\n%s", log)
	}
}

// What is in flight leaves no room for a request that would tell.
func TestWorker_DeletedConsumerEndsTheRunAlsoWithNoRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.MaxInFlight = 1
	r.publish(1, oneKey)
	w := r.worker(func(context.Context, jetstream.Msg) error {
		return oncemill.RetryAfter(time.Hour, errors.New("closed on Sundays"))
	})
	w.LookEvery(lookEvery)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(context.Background()) }()
	until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
	if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	if err := await(t, ended); !errors.Is(err, jetstream.ErrConsumerNotFound) || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("Run: %v", err)
	}
}
