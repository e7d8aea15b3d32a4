package stocknats_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/stocknats"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil { // they wait more than they work
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait for something that must come.
const patience = 20 * time.Second

// until polls for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// full is the first value in a proof, where time does not matter, else the second.
func full[T any](inProof, reduced T) T {
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		return inProof
	}
	return reduced
}

// quiet discards what is logged.
var quiet = slog.New(slog.DiscardHandler)

// each runs a test with both adapters.
func each(t *testing.T, test func(t *testing.T, adapter string)) {
	for _, adapter := range []string{"jetstream", "nats"} {
		t.Run(adapter, func(t *testing.T) {
			t.Parallel()
			test(t, adapter)
		})
	}
}

// A setup says what a rig does. The zero value is usable.
type setup struct {
	adapter     string        // "jetstream" or "nats"
	bare        bool          // without this package
	ackWait     time.Duration // of the consumer; zero: 30 s
	patience    time.Duration // the adapter's AckWaitTimeout
	maxPending  int           // the consumer's MaxAckPending; 0: the server's default
	subscribers int           // SubscribersCount, of nats
	decode      func(data []byte) error
	fallback    wmnats.Delay
	config      stocknats.Config
	store       dedupstore.Store
	consumer    consumer.Config
	outer       message.HandlerMiddleware // around the guard
	handle      func(msg *message.Message, delivery int) error
}

// A rig is a server with the stream "orders" and its durable consumer "billing", which exists before anybody subscribes.
type rig struct {
	setup
	t      *testing.T
	server *testserver.NATSServer
	js     jetstream.JetStream
	store  dedupstore.Store
	log    locked

	mu        sync.Mutex
	delivered []delivered // to the middleware
	runs      map[string]int
}

type delivered struct {
	payload string
	at      time.Time
}

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	r := &rig{setup: s, t: t, server: testserver.NATS(t), store: s.store, runs: map[string]int{}}
	if r.store == nil {
		memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		r.store = memory
	}
	r.js = r.server.JetStream()
	r.must(r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}))
	if s.adapter == "jetstream" {
		r.must(r.js.CreateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{
			Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.ackWait, MaxAckPending: s.maxPending,
		}))
		return r
	}
	r.must(r.js.CreatePushConsumer(t.Context(), "orders", jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.ackWait, MaxAckPending: s.maxPending,
		DeliverSubject: "deliver.billing", DeliverGroup: "billing", FilterSubject: "orders",
	}))
	return r
}

func (r *rig) must(_ any, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// publish adds messages with the payloads, which are their IDs too.
func (r *rig) publish(payloads ...string) {
	r.t.Helper()
	for _, p := range payloads {
		r.send(p, nats.Header{producer.HeaderID: {p}})
	}
}

func (r *rig) send(payload string, header nats.Header) {
	r.t.Helper()
	r.must(r.js.PublishMsg(r.t.Context(), &nats.Msg{Subject: "orders", Data: []byte(payload), Header: header}))
}

// info is what the server knows about the consumer.
func (r *rig) info() jetstream.ConsumerInfo {
	r.t.Helper()
	s, err := r.js.Stream(context.Background(), "orders")
	if err != nil {
		r.t.Fatal(err)
	}
	var info *jetstream.ConsumerInfo
	if r.adapter == "jetstream" {
		c, err := s.Consumer(context.Background(), "billing")
		if err != nil {
			r.t.Fatal(err)
		}
		info = c.CachedInfo()
	} else {
		c, err := s.PushConsumer(context.Background(), "billing")
		if err != nil {
			r.t.Fatal(err)
		}
		info = c.CachedInfo()
	}
	return *info
}

// settled waits until everything that the stream has is acknowledged or terminated. The server counts a message as pending
// only after it has confirmed it to the publisher.
func (r *rig) settled() {
	r.t.Helper()
	stream, err := r.js.Stream(context.Background(), "orders")
	if err != nil {
		r.t.Fatal(err)
	}
	last := stream.CachedInfo().State.LastSeq
	until(r.t, "everything to be settled", func() bool {
		info := r.info()
		return info.Delivered.Stream >= last && info.NumAckPending == 0 && info.NumPending == 0
	})
}

type jsonish struct{ decode func([]byte) error }

func (u jsonish) message(header nats.Header, data []byte) (*message.Message, error) {
	if err := u.decode(data); err != nil {
		return nil, err
	}
	msg := message.NewMessage(string(data), data)
	msg.Metadata.Set(producer.HeaderID, header.Get(producer.HeaderID))
	return msg, nil
}

type jsonishPull struct{ jsonish }

func (u jsonishPull) Unmarshal(msg jetstream.Msg) (*message.Message, error) {
	return u.message(msg.Headers(), msg.Data())
}

type jsonishPush struct{ jsonish }

func (u jsonishPush) Unmarshal(msg *nats.Msg) (*message.Message, error) {
	return u.message(msg.Header, msg.Data)
}

// subscriber returns a subscriber on a connection of its own.
func (r *rig) subscriber() message.Subscriber {
	r.t.Helper()
	nc := r.server.Connect()
	r.config.Logger = slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if r.adapter == "nats" {
		config := wmnats.SubscriberSubscriptionConfig{
			QueueGroupPrefix: "billing", AckWaitTimeout: r.patience, SubscribersCount: r.subscribers,
			JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing"}, CloseTimeout: 2 * time.Second,
		}
		if r.fallback != nil {
			config.NakDelay = r.fallback
		}
		if r.decode != nil {
			config.Unmarshaler = jsonishPush{jsonish{r.decode}}
		}
		if r.bare {
			return got(wmnats.NewSubscriberWithNatsConn(nc, config, nil))(r.t)
		}
		return got(stocknats.NATS(nc, config, r.config))(r.t)
	}
	config := wmjetstream.SubscriberConfig{
		AckWaitTimeout: r.patience, Conn: nc,
		ResourceInitializer: stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
			return "orders", jetstream.ConsumerConfig{Durable: "billing"}
		}),
	}
	if r.fallback != nil {
		config.NakDelay = r.fallback
	}
	if r.decode != nil {
		config.Unmarshaler = jsonishPull{jsonish{r.decode}}
	}
	if r.bare {
		config.Logger = noLog{}
		return got(wmjetstream.NewSubscriber(config))(r.t)
	}
	return got(stocknats.JetStream(nc, config, r.config))(r.t)
}

func got[S message.Subscriber](s S, err error) func(testing.TB) message.Subscriber {
	return func(t testing.TB) message.Subscriber {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// A service is a Router with a guarded handler.
type service struct {
	*message.Router
	cancel context.CancelFunc
	ended  chan struct{}
	sub    message.Subscriber
}

// serve starts a service, and stops it at the end of the test.
func (r *rig) serve() *service {
	r.t.Helper()
	config := r.consumer
	config.Group = "billing"
	if config.Hold == 0 {
		config.Hold = consumer.NoHold
	}
	config.Policy.Logger = quiet
	once, err := consumer.New(r.store, config)
	if err != nil {
		r.t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, noLog{})
	if err != nil {
		r.t.Fatal(err)
	}
	s := &service{Router: router, ended: make(chan struct{}), sub: r.subscriber()}
	router.AddMiddleware(r.count)
	if r.outer != nil {
		router.AddMiddleware(r.outer)
	}
	router.AddMiddleware(once.Middleware)
	router.AddConsumerHandler("charge", "orders", s.sub, r.run)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		defer close(s.ended)
		if err := router.Run(ctx); err != nil {
			r.t.Errorf("Router.Run: %v", err)
		}
	}()
	select {
	case <-router.Running():
	case <-s.ended:
		r.t.FailNow()
	}
	r.t.Cleanup(func() {
		cancel()
		router.Close()
		s.sub.Close()
		<-s.ended
	})
	return s
}

// count notes the deliveries that reach the Router.
func (r *rig) count(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		r.mu.Lock()
		r.delivered = append(r.delivered, delivered{string(msg.Payload), time.Now()})
		r.mu.Unlock()
		return next(msg)
	}
}

func (r *rig) run(msg *message.Message) error {
	r.mu.Lock()
	r.runs[string(msg.Payload)]++
	n := r.runs[string(msg.Payload)]
	r.mu.Unlock()
	if r.handle == nil {
		return nil
	}
	return r.handle(msg, n)
}

// times returns when a payload was delivered.
func (r *rig) times(payload string) (times []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.delivered {
		if d.payload == payload {
			times = append(times, d.at)
		}
	}
	return times
}

func (r *rig) deliveries() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.delivered)
}

func (r *rig) ran(payload string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[payload]
}

// wantRunsOnce checks that each payload ran exactly once, and that nothing else did.
func (r *rig) wantRunsOnce(payloads []string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range payloads {
		if r.runs[p] != 1 {
			r.t.Errorf("%s ran %d times, want once", p, r.runs[p])
		}
	}
	if len(r.runs) != len(payloads) {
		r.t.Errorf("%d messages ran, want %d", len(r.runs), len(payloads))
	}
}

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("o%03d", i)
	}
	return names
}

// wantDelay checks that two deliveries are as far apart as asked, or somewhat more on a busy machine.
func wantDelay(t testing.TB, times []time.Time, want time.Duration) {
	t.Helper()
	if len(times) < 2 {
		t.Fatalf("delivered %d times, want a redelivery", len(times))
	}
	if d := times[1].Sub(times[0]); d < want || d > want+5*time.Second {
		t.Errorf("delivered again after %v, want %v", d, want)
	}
}

// within waits for a channel.
func within(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
	}
}
