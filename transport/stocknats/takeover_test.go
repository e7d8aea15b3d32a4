package stocknats_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// These tests keep what docs/adopting.md says of a durable consumer that a service had before it had this library.

// An old service is a subscriber of Watermill's own, and no guard: it acknowledges the first of its messages, and is at the next
// when it ends.
type oldService struct {
	sub message.Subscriber
	at  <-chan string // the payload that it is at

	mu   sync.Mutex
	done []string // what it has acknowledged
}

func (r *rig) old(n int) *oldService {
	r.t.Helper()
	nc := r.server.Connect()
	s := &oldService{}
	if r.adapter == "nats" {
		s.sub = got(wmnats.NewSubscriberWithNatsConn(nc, wmnats.SubscriberSubscriptionConfig{
			QueueGroupPrefix: "billing", CloseTimeout: 100 * time.Millisecond,
			JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing", SubscribeOptions: []nats.SubOpt{nats.ManualAck()}},
		}, noLog{}))(r.t)
	} else {
		r.bare = true
		s.sub = r.subscriber()
		r.bare = false
	}
	messages, err := s.sub.Subscribe(r.t.Context(), "orders")
	if err != nil {
		r.t.Fatal(err)
	}
	at := make(chan string, 1)
	s.at = at
	go func() {
		for msg := range messages {
			if n--; n < 0 {
				at <- string(msg.Payload)
				return
			}
			s.mu.Lock()
			s.done = append(s.done, string(msg.Payload))
			s.mu.Unlock()
			msg.Ack()
		}
	}()
	r.t.Cleanup(func() { s.sub.Close() })
	return s
}

// works starts a natsjs.Worker on the rig's consumer, with a handler that counts as the rig's.
func (r *rig) works() {
	r.t.Helper()
	once, err := consumer.New(r.store, consumer.Config{Group: "billing"})
	if err != nil {
		r.t.Fatal(err)
	}
	js := r.server.JetStream()
	cons, err := js.Consumer(r.t.Context(), "orders", "billing")
	if err != nil {
		r.t.Fatal(err)
	}
	w, err := natsjs.NewWorker(once, js, cons, func(_ context.Context, msg jetstream.Msg) error {
		return r.run(message.NewMessage(msg.Headers().Get(producer.HeaderID), msg.Data()))
	}, natsjs.Config{Logger: quiet})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("Worker.Run: %v", err)
		}
	})
}

func TestStock_DurableOfAStockSubscriberIsTakenOver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		adapter string
		begin   func(*rig)
	}{
		"jetstream by stocknats": {"jetstream", func(r *rig) { r.serve() }},
		"jetstream by natsjs":    {"jetstream", (*rig).works},
		"nats by stocknats":      {"nats", func(r *rig) { r.serve() }},
	} {
		for _, rolling := range []bool{false, true} {
			how := " after it"
			if rolling {
				how = " beside it"
			}
			t.Run(name+how, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, setup{adapter: tc.adapter, ackWait: 2 * time.Second})
				all := numbered(60)
				r.publish(all...)
				old := r.old(20)
				var at string
				select {
				case at = <-old.at:
				case <-time.After(patience):
					t.Fatal("the old service did not get that far")
				}
				if rolling {
					tc.begin(r)
					until(t, "a message for the new service", func() bool { return r.total() > 0 })
				}
				old.sub.Close()
				if !rolling {
					tc.begin(r)
				}
				r.settled()
				old.mu.Lock()
				defer old.mu.Unlock()
				if len(old.done) != 20 || slices.Contains(old.done, at) {
					t.Fatalf("the old service has done %q, and was at %s", old.done, at)
				}
				for _, p := range all {
					want := 1
					if slices.Contains(old.done, p) {
						want = 0
					}
					if n := r.ran(p); n != want {
						t.Errorf("%s ran %d times in the new service, want %d", p, n, want)
					}
				}
			})
		}
	}
}

// Who updates a consumer for its new subscriber does not thereby get what its old one had used up.
func TestStock_UpdateDoesNotBringBackWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	js := testserver.NATS(t).JetStream()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.ConsumerConfig{Durable: "old", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 100 * time.Millisecond, MaxDeliver: 1}
	consumer, err := stream.CreateConsumer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	publish := func() {
		t.Helper()
		if _, err := js.Publish(t.Context(), "orders", nil); err != nil {
			t.Fatal(err)
		}
	}
	next := func(c jetstream.Consumer, wait time.Duration) jetstream.Msg {
		t.Helper()
		m, err := c.Next(jetstream.FetchMaxWait(wait))
		if err != nil && !errors.Is(err, nats.ErrTimeout) {
			t.Fatal(err)
		}
		return m
	}
	sequence := func(m jetstream.Msg) uint64 {
		t.Helper()
		if m == nil {
			t.Fatal("no message came")
		}
		meta, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		return meta.Sequence.Stream
	}
	publish()
	sequence(next(consumer, patience)) // not acknowledged
	until(t, "the message to be given up", func() bool {
		next(consumer, 50*time.Millisecond)
		info, err := consumer.Info(t.Context())
		return err == nil && info.NumAckPending == 0
	})
	cfg.MaxDeliver = -1
	if consumer, err = stream.UpdateConsumer(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	publish()
	m := next(consumer, patience)
	if n := sequence(m); n != 2 {
		t.Errorf("message %d came, want the second: docs/adopting.md says that the first does not", n)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, err := consumer.Info(t.Context()); err != nil || info.AckFloor.Stream != 2 || info.NumPending != 0 || info.NumAckPending != 0 {
		t.Errorf("the consumer is at %+v, %v, want nothing in it to tell of the first message", info, err)
	}
	if err := stream.DeleteConsumer(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	if consumer, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "new"}); err != nil {
		t.Fatal(err)
	}
	if n := sequence(next(consumer, patience)); n != 1 {
		t.Errorf("message %d came to the consumer that was made anew, want the first", n)
	}
}

// total is how many runs there were.
func (r *rig) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, runs := range r.runs {
		n += runs
	}
	return n
}
