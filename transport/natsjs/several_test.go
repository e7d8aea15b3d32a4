package natsjs_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func TestWorker_HandlersThatCannotAckAreNotRepeatedByOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{AckWait: time.Second, MaxDeliver: 20})
	const n = 20
	r.publish(n, oneKey)
	healthy := r.js
	r.js = r.server.JetStream() // of the first worker, which will lose it
	lost := r.js.Conn()
	var err error
	if r.cons, err = r.js.Consumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	first := r.start(r.worker(func(context.Context, jetstream.Msg) error { <-release; return nil }))
	until(t, "all messages in flight", func() bool { _, runs := r.done(); return runs == n })
	lost.Close()

	r.js = healthy
	if r.cons, err = r.js.Consumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	second := r.start(r.worker(succeed))
	until(t, "redeliveries", func() bool { return r.info().NumRedelivered > 0 })
	close(release) // while the second one waits for the busy keys
	if err := first(); err == nil {
		t.Error("the first Run ended without an error, though its acks were lost")
	}
	r.acked(n)
	r.stops(second)
	if finished, runs := r.done(); finished != n || runs != n {
		t.Errorf("%d of %d runs finished, want %d of %d", finished, runs, n, n)
	}
}

func TestWorker_ManyWorkersRunEachMessageOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{AckWait: 2 * time.Second})
	r.config.MaxInFlight = 32
	n := full(5000, 600)
	r.publish(n, oneKey)
	r.publish(n/2, oneKey) // duplicates
	var stops []stopper
	for range 3 {
		stops = append(stops, r.start(r.worker(func(context.Context, jetstream.Msg) error { lasts(time.Millisecond); return nil })))
	}
	r.finishes(n / 3)
	r.stops(stops[0]) // a deployment in the middle
	stops[0] = r.start(r.worker(succeed))
	r.finishes(n)
	r.acked(n + n/2)
	for _, stop := range stops {
		r.stops(stop)
	}
	if _, runs := r.done(); runs != n {
		t.Errorf("%d runs of %d messages", runs, n)
	}
}
