package consumer_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// virtual runs a test in a bubble of virtual time, which also fails if a goroutine is left behind.
func virtual(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

func newStore(t testing.TB) *dedupstore.Memory {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newProcessor(t testing.TB, store dedupstore.Store, c consumer.Config) *consumer.Processor {
	t.Helper()
	if c.Group == "" {
		c.Group = "billing"
	}
	if c.Policy.Logger == nil {
		c.Policy.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	p, err := consumer.New(store, c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// order is a stamped message.
func order(id string) *message.Message {
	m := message.NewMessage(id, message.Payload("order "+id))
	m.Metadata.Set(producer.HeaderID, id)
	return m
}

// letters is a dead-letter publisher that remembers, and fails on request.
type letters struct {
	mu   sync.Mutex
	sent []producer.Message
	fail error
}

func (l *letters) Publish(_ context.Context, messages ...producer.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	l.sent = append(l.sent, messages...)
	return nil
}

func (l *letters) only(t testing.TB) producer.Message {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) != 1 {
		t.Fatalf("%d dead letters, want exactly one: %v", len(l.sent), l.sent)
	}
	return l.sent[0]
}

// handler counts its runs.
type handler struct {
	mu   sync.Mutex
	runs int
	then func(msg *message.Message, run int) ([]*message.Message, error)
}

func (h *handler) handle(msg *message.Message) ([]*message.Message, error) {
	h.mu.Lock()
	h.runs++
	n := h.runs
	h.mu.Unlock()
	if h.then == nil {
		return nil, nil
	}
	return h.then(msg, n)
}

func (h *handler) want(t testing.TB, runs int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs != runs {
		t.Errorf("handler ran %d times, want %d", h.runs, runs)
	}
}

// router is a Watermill Router between two gochannel topics, "orders" and "receipts".
type router struct {
	*message.Router
	pubsub *gochannel.GoChannel
	ended  chan error
}

// flaky fails the first publishes.
type flaky struct {
	message.Publisher
	mu    sync.Mutex
	fails int
}

func (f *flaky) Publish(topic string, messages ...*message.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		return errors.New("broker refused")
	}
	return f.Publisher.Publish(topic, messages...)
}

func startRouter(t *testing.T, setup func(r *message.Router, ps *gochannel.GoChannel)) *router {
	t.Helper()
	log := watermill.NopLogger{}
	ps := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 100, Persistent: true}, log)
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, log)
	if err != nil {
		t.Fatal(err)
	}
	setup(r, ps)
	started := &router{Router: r, pubsub: ps, ended: make(chan error, 1)}
	go func() { started.ended <- r.Run(context.Background()) }()
	<-r.Running()
	return started
}

func (r *router) stop(t *testing.T, p *consumer.Processor) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := r.pubsub.Close(); err != nil {
		t.Error(err)
	}
}

// received returns what was published to a topic so far.
func (r *router) received(t *testing.T, topic string) []*message.Message {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := r.pubsub.Subscribe(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	var got []*message.Message
	for {
		synctest.Wait()
		select {
		case m := <-messages:
			m.Ack()
			got = append(got, m)
			continue
		default:
		}
		break
	}
	cancel()
	for range messages {
	}
	return got
}

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}
