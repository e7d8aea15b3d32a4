package natsjs_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/sourcetest"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func TestSource_Conforms(t *testing.T) {
	t.Parallel()
	for name, maxDeliver := range map[string]int{"without a limit": -1, "with a limit to deliveries": 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sourcetest.Run(t, func(t *testing.T) sourcetest.Subject { return newConforming(t, maxDeliver).subject() })
		})
	}
}

// A conforming is a server with the stream "orders" and its consumer, and the members of a group.
type conforming struct {
	t          *testing.T
	server     *natstest.Server
	js         jetstream.JetStream
	cons       jetstream.Consumer
	maxDeliver int

	mu    sync.Mutex
	wires map[consumer.Source]*testserver.Wire
	deaf  bool
}

// A process that stands still for half of this may lose the order of what it has. Busy neighbours take it a second.
const conformingAckWait = 8 * time.Second

func newConforming(t *testing.T, maxDeliver int) *conforming {
	t.Helper()
	c := &conforming{
		t: t, maxDeliver: maxDeliver, wires: map[consumer.Source]*testserver.Wire{},
		// With small messages the first request asks for all that a drain has given back. See Config.Order.
		server: natstest.Start(t, func(o *server.Options) { o.MaxPayload = 16 << 10 }),
	}
	c.js = c.server.JetStream()
	_, err := c.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}})
	if err != nil {
		t.Fatal(err)
	}
	c.cons, err = c.js.CreateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{
		Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, AckWait: conformingAckWait, MaxDeliver: maxDeliver,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *conforming) subject() sourcetest.Subject {
	s := sourcetest.Subject{
		Topic: "orders", AckWait: conformingAckWait, Open: c.open, Publish: c.publish, Batches: c.batches,
		Left: func() int {
			info := c.info()
			return int(info.NumPending) + info.NumAckPending
		},
		Restart: func() {
			c.server.Shutdown()
			c.server.Restart()
		},
		LoseAcks: func() func() { c.lose(losesAcks); return func() { c.lose(nil) } },
		Cut: func(s consumer.Source) func() {
			c.mu.Lock()
			wire := c.wires[s]
			c.mu.Unlock()
			wire.Cut()
			return wire.Heal
		},
	}
	if c.maxDeliver > 0 {
		s.Lacks = map[sourcetest.Capability]string{sourcetest.Room: "what waits is kept, so that it uses up no delivery"}
		s.Deliveries = func() int { return int(c.info().Delivered.Consumer) }
	}
	return s
}

func losesAcks(written []byte) bool { return bytes.Contains(written, []byte("PUB $JS.ACK.")) }

// lose sets what all members, also later ones, lose.
func (c *conforming) lose(what func([]byte) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = what != nil
	for _, wire := range c.wires {
		wire.Lose(what)
	}
}

// info asks until the server, which may be starting, answers.
func (c *conforming) info() (info *jetstream.ConsumerInfo) {
	c.t.Helper()
	until(c.t, "what the server says of the consumer", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		var err error
		info, err = c.cons.Info(ctx)
		return err == nil
	})
	return info
}

func (c *conforming) publish(messages ...sourcetest.Message) {
	c.t.Helper()
	for _, m := range messages {
		msg := nats.NewMsg("orders.new")
		msg.Header.Set(producer.HeaderID, m.ID)
		if m.Key != "" {
			msg.Header.Set(producer.HeaderKey, m.Key)
		}
		msg.Data = m.Payload
		until(c.t, "the stream to take a message", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := c.js.PublishMsg(ctx, msg)
			return err == nil
		})
	}
}

// member connects a member, through a wire of its own.
func (c *conforming) member(m sourcetest.Member) (jetstream.JetStream, natsjs.Config, *testserver.Wire) {
	c.t.Helper()
	wire := &testserver.Wire{}
	js := c.server.JetStream(nats.SetCustomDialer(wire), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	// The first answer starts a goroutine that is the connection's.
	if _, err := js.AccountInfo(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	return js, natsjs.Config{
		MaxInFlight: m.MaxInFlight, Grace: m.Grace, Order: natsjs.ByHeader(producer.HeaderKey),
		Logger: slog.New(slog.DiscardHandler),
	}, wire
}

func (c *conforming) open(m sourcetest.Member) consumer.Source {
	c.t.Helper()
	js, config, wire := c.member(m)
	source, err := natsjs.NewSource(m.Once, js, natsjs.SourceConfig{
		Config: config,
		Consumer: func(ctx context.Context, _ string) (jetstream.Consumer, error) {
			return js.Consumer(ctx, "orders", "billing")
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wires[source] = wire
	if c.deaf {
		wire.Lose(losesAcks)
	}
	return source
}

func (c *conforming) batches(
	ctx context.Context, m sourcetest.Member, handle func(ctx context.Context, ids []string) []error,
) error {
	js, config, _ := c.member(m)
	config.Handler = "charge"
	batches := func(ctx context.Context, msgs []jetstream.Msg) []error {
		var ids []string
		for _, msg := range msgs {
			ids = append(ids, msg.Headers().Get(producer.HeaderID))
		}
		return handle(ctx, ids)
	}
	w, err := natsjs.NewBatchWorker(m.Once, js, c.cons, batches, natsjs.BatchConfig{Config: config, MaxBatch: 4})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}
