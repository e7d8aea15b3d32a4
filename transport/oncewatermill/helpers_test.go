package oncewatermill_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
)

var (
	virtual      = consumertest.Virtual
	newStore     = consumertest.NewStore
	newProcessor = consumertest.NewProcessor
	logged       = consumertest.Logged
)

type (
	deadLetters = consumertest.DeadLetters
	lossy       = consumertest.Lossy
)

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}

func delivery(id string) consumer.Delivery {
	return consumer.Delivery{
		Topic: "orders", Header: producer.Header{producer.HeaderID: id, "color": "blue"}, Payload: []byte("order " + id),
	}
}

var errDeclined = oncemill.Permanent(errors.New("declined"))

// traced returns a config whose spans are recorded.
func traced() (consumer.Config, *tracetest.SpanRecorder, trace.Tracer) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	c := consumer.Config{System: "rabbitmq", MaxWait: consumer.NoWait}
	c.Policy.Telemetry = oncemill.Telemetry{TracerProvider: provider, Propagator: propagation.TraceContext{}}
	return c, spans, provider.Tracer("outside")
}

func attributesOf(s sdktrace.ReadOnlySpan) map[string]string {
	found := map[string]string{}
	for _, a := range s.Attributes() {
		found[string(a.Key)] = a.Value.String()
	}
	return found
}

const messageTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

// routed is the context of a message in a Router, whose handler is called charge, consumes orders and publishes receipts: only a
// Router can name handlers.
var routed = func() context.Context {
	ps := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	r, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	found := make(chan context.Context, 1)
	r.AddHandler("charge", "orders", ps, "receipts", ps, func(m *message.Message) ([]*message.Message, error) {
		// values over values, as in a Router
		found <- context.WithValue(context.WithoutCancel(m.Context()), routedKey{}, true)
		return nil, nil
	})
	go func() { _ = r.Run(context.Background()) }()
	<-r.Running()
	if err := ps.Publish("orders", message.NewMessage("", nil)); err != nil {
		panic(err)
	}
	ctx := <-found
	if err := errors.Join(r.Close(), ps.Close()); err != nil {
		panic(err)
	}
	return ctx
}()

// inRouter is a message as the Router gives it to a handler.
func inRouter(uuid string, payload []byte) *message.Message {
	return message.NewMessageWithContext(routed, uuid, payload)
}

type routedKey struct{}

// order is a stamped message, as the Router gives it to a handler.
func order(id string) *message.Message {
	m := inRouter(id, []byte("order "+id))
	m.Metadata.Set(producer.HeaderID, id)
	return m
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

// wantInvalid checks that an error is an *InvalidError for the field, and returns it.
func wantInvalid(t testing.TB, err error, field string) *dedupstore.InvalidError {
	t.Helper()
	var invalid *dedupstore.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error %v (%T), want an *InvalidError for %q", err, err, field)
	}
	if invalid.Field != field {
		t.Errorf("the error is for %q, want %q: %v", invalid.Field, field, err)
	}
	return invalid
}

var long = strings.Repeat("x", 513)

// withSpan returns a context with a span, and its traceparent.
func withSpan(t testing.TB, span byte) (context.Context, string) {
	t.Helper()
	sc := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{span}, TraceFlags: trace.FlagsSampled, Remote: true,
	})
	ctx := producer.WithPropagator(trace.ContextWithSpanContext(t.Context(), sc), propagation.TraceContext{})
	return ctx, "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
}

// broker is a Watermill publisher that remembers, and fails for the topics that it is told.
type broker struct {
	mu   sync.Mutex
	sent []*message.Message
	by   map[string][]string // IDs by topic
	fail map[string]error
}

func (b *broker) Publish(topic string, messages ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail[topic]; err != nil {
		return err
	}
	if b.by == nil {
		b.by = map[string][]string{}
	}
	for _, m := range messages {
		b.sent = append(b.sent, m)
		b.by[topic] = append(b.by[topic], m.UUID)
	}
	return nil
}

func (*broker) Close() error { return nil }

// published is a Publisher that remembers.
type published struct {
	messages []producer.Message
	ctx      context.Context
	err      error
}

func (p *published) Publish(ctx context.Context, messages ...producer.Message) error {
	p.ctx = ctx
	p.messages = append(p.messages, messages...)
	return p.err
}
