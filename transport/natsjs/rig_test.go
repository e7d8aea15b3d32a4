package natsjs_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// Nothing that the tests start outlives them.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil { // they wait most of the time
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// proof says whether time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") == "1"

// full is the first value in a proof, else the second.
func full[T any](inProof, reduced T) T {
	if proof {
		return inProof
	}
	return reduced
}

// longWait bounds every wait for something that must come.
const longWait = 2 * time.Minute

// until polls for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(longWait); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", longWait, what)
		}
	}
}

// lasts waits for something that takes its time, such as a handler.
func lasts(d time.Duration) { <-time.After(d) }

// A rig is a server with the stream "orders", a consumer "billing" of it, a store, and what handlers have done.
type rig struct {
	t       *testing.T
	server  *natstest.Server
	js      jetstream.JetStream
	cons    jetstream.Consumer
	store   dedupstore.Store
	policy  oncemill.Policy
	config  natsjs.Config
	maxWait time.Duration
	dead    consumer.Config // DeadLetters and DeadLetterTopic of it
	log     lockedBuffer

	mu       sync.Mutex
	started  map[string]int
	finished map[string]int
	order    []string // IDs as they finished
}

// newRig starts a rig. The consumer has an AckWait of 30 s unless it says otherwise.
func newRig(t *testing.T, c jetstream.ConsumerConfig, configure ...func(*server.Options)) *rig {
	t.Helper()
	r := &rig{t: t, server: natstest.Start(t, configure...), started: map[string]int{}, finished: map[string]int{}}
	r.js = r.server.JetStream()
	r.open(c)
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r.store = store
	r.policy.Backoff = oncemill.Backoff{Min: 50 * time.Millisecond, Max: 200 * time.Millisecond}
	return r
}

// open makes the stream and the consumer.
func (r *rig) open(c jetstream.ConsumerConfig) {
	r.t.Helper()
	var err error
	until(r.t, "the stream", func() bool {
		_, err = r.js.CreateOrUpdateStream(r.t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, MaxAge: time.Hour})
		refused, ok := errors.AsType[*jetstream.APIError](err)
		namesake := ok && refused.ErrorCode == 10049 // whose files are still being removed
		return !namesake && !errors.Is(err, context.DeadlineExceeded)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	c.Durable = "billing"
	if c.AckPolicy == 0 {
		c.AckPolicy = jetstream.AckExplicitPolicy
	}
	r.cons = natstest.Ask(r.t, "the consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		return r.js.CreateOrUpdateConsumer(ctx, "orders", c)
	})
}

// publish sends messages o0, o1, … to the subject orders.<key>.
func (r *rig) publish(n int, key func(i int) string) {
	r.t.Helper()
	for i := range n {
		msg := nats.NewMsg("orders." + key(i))
		msg.Header.Set(producer.HeaderID, fmt.Sprintf("o%d", i))
		msg.Data = []byte("x")
		once := jetstream.WithMsgID(ids.New()) // it is sent again if there is no answer
		natstest.Ask(r.t, "a message in the stream", func(ctx context.Context) (*jetstream.PubAck, error) {
			return r.js.PublishMsg(ctx, msg, once)
		})
	}
}

func oneKey(int) string { return "all" }

func (r *rig) processor() *consumer.Processor {
	r.t.Helper()
	policy := r.policy
	policy.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
	once, err := consumer.New(r.store, consumer.Config{Group: "billing", MaxWait: r.maxWait, Policy: policy, DeadLetters: r.dead.DeadLetters, DeadLetterTopic: r.dead.DeadLetterTopic})
	if err != nil {
		r.t.Fatal(err)
	}
	return once
}

// worker makes a worker whose handler counts what it does.
func (r *rig) worker(handle natsjs.Handler) *natsjs.Worker {
	r.t.Helper()
	config := r.config
	config.Handler = "charge"
	config.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
	w, err := natsjs.NewWorker(r.processor(), r.js, r.cons, func(ctx context.Context, msg jetstream.Msg) error {
		id := msg.Headers().Get(producer.HeaderID)
		r.count(r.started, id)
		if err := handle(ctx, msg); err != nil {
			return err
		}
		r.mu.Lock()
		r.order = append(r.order, id)
		r.mu.Unlock()
		r.count(r.finished, id)
		return nil
	}, config)
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

func (r *rig) count(counts map[string]int, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts[id]++
}

// done returns how many messages were finished, and how many handler runs there were.
func (r *rig) done() (finished, runs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.started {
		runs += n
	}
	return len(r.finished), runs
}

func (r *rig) finishes(n int) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("%d finished messages", n), func() bool {
		finished, _ := r.done()
		return finished >= n
	})
}

// A stopper ends a running worker and returns its error.
type stopper func() error

// start runs a worker until it is stopped, at the latest at the end of the test.
func (r *rig) start(w interface{ Run(context.Context) error }) stopper {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(longWait):
			return errors.New("Run did not end")
		}
	})
	r.t.Cleanup(func() {
		if err := stop(); err != nil && !r.t.Failed() {
			r.t.Logf("Run: %v", err)
		}
	})
	return stop
}

func (r *rig) stops(stop stopper) {
	r.t.Helper()
	if err := stop(); err != nil {
		r.t.Errorf("Run: %v, want a clean drain", err)
	}
}

func (r *rig) info() *jetstream.ConsumerInfo {
	r.t.Helper()
	return natstest.Ask(r.t, "the consumer's state", r.cons.Info)
}

// acked waits until the server knows that the first n messages are done, and nothing else is pending.
func (r *rig) acked(n int) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("the ack floor %d", n), func() bool {
		info := r.info()
		return info.AckFloor.Stream == uint64(n) && info.NumAckPending == 0
	})
}

// source makes a source of the consumer.
func (r *rig) source() *natsjs.Source {
	r.t.Helper()
	return r.sourceOf(r.processor())
}

func (r *rig) sourceOf(once *consumer.Processor) *natsjs.Source {
	r.t.Helper()
	config := r.config
	config.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
	s, err := natsjs.NewSource(once, r.js, natsjs.SourceConfig{
		Config: config,
		Consumer: func(ctx context.Context, _ string) (jetstream.Consumer, error) {
			return r.js.Consumer(ctx, "orders", "billing")
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// A deciding is a source with what decides on its deliveries, as something that runs.
type deciding struct {
	source *natsjs.Source
	decide func(context.Context, consumer.Delivery) consumer.Decision
}

// Run runs the source.
func (d deciding) Run(ctx context.Context) error {
	return d.source.Run(ctx, "orders", consumertest.Blocking(d.decide))
}

func idOf(d consumer.Delivery) string { return d.Header.Get(producer.HeaderID) }
