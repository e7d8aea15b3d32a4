package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/transport/natsjs"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A rig is a server with the stream "orders", a consumer "billing" of it, and a store.
type rig struct {
	t      *testing.T
	js     jetstream.JetStream
	cons   jetstream.Consumer
	store  dedupstore.Store
	policy oncemill.Policy
	keep   time.Duration
}

// newRig starts a rig.
func newRig(t *testing.T, c jetstream.ConsumerConfig) *rig {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, js: natstest.Start(t).JetStream(), store: store}
	r.policy.Backoff = oncemill.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond}
	r.policy.Logger = slog.New(slog.DiscardHandler)
	r.open(c)
	return r
}

// open makes the stream and the consumer.
func (r *rig) open(c jetstream.ConsumerConfig) {
	r.t.Helper()
	_, err := r.js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, MaxAge: time.Hour})
	if err != nil {
		r.t.Fatal(err)
	}
	c.Durable, c.AckPolicy = "billing", jetstream.AckExplicitPolicy
	if r.cons, err = r.js.CreateOrUpdateConsumer(r.t.Context(), "orders", c); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) processor() *consumer.Processor {
	r.t.Helper()
	once, err := consumer.New(r.store, consumer.Config{Group: "billing", MaxWait: r.keep, Policy: r.policy})
	if err != nil {
		r.t.Fatal(err)
	}
	return once
}

func (r *rig) info() *jetstream.ConsumerInfo {
	r.t.Helper()
	info, err := r.cons.Info(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// acked waits until the server knows that the first n messages are done, and nothing else is pending.
func (r *rig) acked(n int) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("the ack floor %d", n), func() bool {
		info := r.info()
		return info.AckFloor.Stream == uint64(n) && info.NumAckPending == 0
	})
}

func (r *rig) sourceOf(once *consumer.Processor) *natsjs.Source {
	r.t.Helper()
	s, err := natsjs.NewSource(once, r.js, natsjs.SourceConfig{
		Config: natsjs.Config{Logger: r.policy.Logger},
		Consumer: func(ctx context.Context, _ string) (jetstream.Consumer, error) {
			return r.js.Consumer(ctx, "orders", "billing")
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// routed runs a Router over the source until the test ends. Its handler succeeds at the nth run; it returns the runs.
func (r *rig) routed(nth int32) *atomic.Int32 {
	r.t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	var runs atomic.Int32
	once := r.processor()
	router.AddMiddleware(oncewatermill.Middleware(once))
	router.AddConsumerHandler("charge", "orders", subscriber(r.t, r.sourceOf(once)), func(*message.Message) error {
		if runs.Add(1) < nth {
			return errors.New("not yet")
		}
		return nil
	})
	r.routes(router)
	return &runs
}

func TestNATS_MiddlewareSteersTheSource(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxDeliver: 20})
	r.keep = consumer.NoWait
	r.policy.MaxAttempts, r.policy.Backoff = 5, oncemill.Backoff{Min: 20 * time.Millisecond}
	runs := r.routed(4)
	if _, err := r.js.Publish(t.Context(), "orders.new", []byte("x"), jetstream.WithMsgID("o1")); err != nil {
		t.Fatal(err)
	}
	until(t, "the success", func() bool { return runs.Load() == 4 })
	r.acked(1)
	if deliveries := r.info().Delivered.Consumer; deliveries != 1 {
		t.Errorf("%d deliveries, want the attempts of one", deliveries)
	}
}
