package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// What programs do when they start, and what happens to servers, does not make the consumer again.
func TestWorker_ConsumerThatOutlivesItsServerIsTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.js = r.server.JetStream(nats.MaxReconnects(-1))
	r.open(jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	release := make(chan struct{})
	looks := &looked{Consumer: r.cons}
	r.cons = looks
	w := r.worker(func(context.Context, jetstream.Msg) error { <-release; return nil })
	w.LookEvery(lookEvery)
	stop := r.start(w)
	until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
	r.open(jetstream.ConsumerConfig{Description: "as programs do when they start"})
	looks.looksAgain(t)
	r.server.Shutdown()
	r.server.Restart()
	until(t, "the server", func() bool { _, err := r.cons.Info(t.Context()); return err == nil })
	looks.looksAgain(t)
	close(release)
	r.acked(1)
	r.stops(stop)
	if log := r.log.String(); strings.Contains(log, "is not settled") {
		t.Errorf("log:\n%s", log)
	}
}

func TestWorker_ConsumerOfAnotherLeaderIsTheSame(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cluster := natstest.StartCluster(t, 3)
	r := &rig{t: t, js: cluster.JetStream(nats.MaxReconnects(-1)), store: store, started: map[string]int{},
		finished: map[string]int{}}
	natstest.Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) {
		return r.js.CreateStream(ctx,
			jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Replicas: 3})
	})
	open := func(description string) jetstream.Consumer {
		return natstest.Ask(t, "the consumer", func(ctx context.Context) (jetstream.Consumer, error) {
			return r.js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{
				Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, Description: description,
			})
		})
	}
	looks := &looked{Consumer: open("")}
	r.cons = looks
	natstest.Ask(t, "a message in the stream", func(ctx context.Context) (*jetstream.PubAck, error) {
		return r.js.Publish(ctx, "orders.all", nil, jetstream.WithMsgID("o0"))
	})
	release := make(chan struct{})
	w := r.worker(func(context.Context, jetstream.Msg) error { <-release; return nil })
	w.LookEvery(lookEvery)
	stop := r.start(w)
	until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
	open("as programs do when they start")
	looks.looksAgain(t)
	for range 3 { // each node once, more or less
		leader := cluster.ConsumerLeader("orders", "billing")
		cluster.Kill(leader)
		cluster.Restart(leader)
		cluster.AwaitCurrent("orders")
		until(t, "a leader", func() bool { _, err := r.cons.Info(t.Context()); return err == nil })
		looks.looksAgain(t)
	}
	close(release)
	until(t, "the ack", func() bool {
		info, err := r.cons.Info(t.Context())
		return err == nil && info.AckFloor.Stream == 1
	})
	r.stops(stop)
	if log := r.log.String(); strings.Contains(log, "is not settled") {
		t.Errorf("log:\n%s", log)
	}
}

// A stream in the memory of a cluster's one node is empty when that node was restarted. It counts from one again, and
// is as old as before. Acks of messages in flight would be for others.
func TestWorker_AcksOfAStreamThatIsLostAreNotForWhatComesAfterIt(t *testing.T) {
	t.Parallel()
	const before = 5
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cluster := natstest.StartCluster(t, 3)
	r := &rig{t: t, js: cluster.JetStream(nats.MaxReconnects(-1)), store: store, started: map[string]int{},
		finished: map[string]int{}}
	natstest.Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) {
		return r.js.CreateStream(ctx,
			jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage})
	})
	r.cons = natstest.Ask(t, "the consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		return r.js.CreateOrUpdateConsumer(ctx, "orders",
			jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	})
	publish := func(id, subject string) {
		natstest.Ask(t, "a message in the stream", func(ctx context.Context) (*jetstream.PubAck, error) {
			return r.js.Publish(ctx, subject, nil, jetstream.WithMsgID(id))
		})
	}
	for i := range before {
		publish(fmt.Sprintf("o%d", i), "orders.all")
	}
	release := make(chan struct{})
	stop := r.start(r.worker(func(_ context.Context, msg jetstream.Msg) error {
		if msg.Subject() == "orders.other" {
			return oncemill.RetryAfter(time.Hour, errors.New("closed on Sundays"))
		}
		<-release
		return nil
	}))
	until(t, "the handlers", func() bool { _, runs := r.done(); return runs == before })
	node := cluster.StreamLeader("orders")
	cluster.Kill(node)
	cluster.Restart(node)
	publish("other", "orders.other")
	until(t, "the other message", func() bool { _, runs := r.done(); return runs == before+1 })
	close(release)
	r.stops(stop)
	until(t, "the message without an outcome to be pending", func() bool { // a new leader may not know it at once
		info := natstest.Ask(t, "the consumer",
			func(ctx context.Context) (*jetstream.ConsumerInfo, error) { return r.cons.Info(ctx) })
		if info.AckFloor.Stream > 0 {
			t.Fatalf("the message without an outcome is acknowledged: %+v", info.AckFloor)
		}
		return info.NumAckPending == 1
	})
}

// A consumer may be reset, or lose its last deliveries with a server that was killed. It looks as if its stream was
// lost, but is not.
func TestWorker_ConsumerThatHasForgottenDeliveriesRunsNothingTwice(t *testing.T) {
	t.Parallel()
	const n = 5
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.MaxInFlight = n // no request is outstanding that would be answered with the messages again
	r.publish(n, oneKey)
	release := make(chan struct{})
	w := r.worker(func(context.Context, jetstream.Msg) error { <-release; return nil })
	w.LookEvery(lookEvery)
	stop := r.start(w)
	until(t, "the handlers", func() bool { _, runs := r.done(); return runs == n })
	// nats-server 2.15.2 undoes a reset that comes while it writes down the last deliveries.
	until(t, "a reset", func() bool {
		answer, err := r.js.Conn().RequestWithContext(t.Context(), "$JS.API.CONSUMER.RESET.orders.billing",
			[]byte(`{"seq":1}`))
		if err != nil || strings.Contains(string(answer.Data), `"error"`) {
			t.Fatalf("reset: %v, %+v", err, answer)
		}
		return strings.Contains(string(answer.Data), `"delivered":{"consumer_seq":0,`)
	})
	until(t, "the worker to notice",
		func() bool { return strings.Contains(r.log.String(), "has lost what it had counted") })
	close(release)
	r.acked(n)
	r.stops(stop)
	if finished, runs := r.done(); finished != n || runs != n {
		t.Errorf("%d messages in %d runs, want %d in as many", finished, runs, n)
	}
}
