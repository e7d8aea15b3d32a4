package telemetry

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// maxLinks is how many links a span keeps by default.
const maxLinks = 128

// A Relay observes a relay. It is safe for concurrent use.
type Relay struct {
	sender *Sender
	name   string

	lag     metric.Float64Histogram
	size    metric.Int64Histogram
	deaths  metric.Int64Counter
	pending metric.Int64ObservableGauge
	oldest  metric.Float64ObservableGauge
	meter   metric.Meter
}

// NewRelay makes the instruments. The table names the outbox, the system that of the broker.
func NewRelay(p Providers, table, system string) (*Relay, error) {
	sender, err := NewSender(p, system)
	if err != nil {
		return nil, err
	}
	r := &Relay{sender: sender, name: table, meter: p.meter()}
	set := maker{meter: r.meter}
	set.histogram(&r.lag, "oncemill.outbox.relay.lag",
		"Time from when a row was written, or due, until the broker had it. Replays are left out.", delayBuckets)
	set.counter(&r.deaths, "oncemill.outbox.deaths", "{message}", "Rows that were refused for the last time.")
	if set.err == nil {
		r.size, set.err = r.meter.Int64Histogram("oncemill.outbox.relay.batch.size", metric.WithUnit("{message}"),
			metric.WithDescription("Rows that a relay took at once."),
			metric.WithExplicitBucketBoundaries(batchBuckets...))
	}
	if set.err == nil {
		r.pending, set.err = r.meter.Int64ObservableGauge("oncemill.outbox.pending", metric.WithUnit("{message}"),
			metric.WithDescription("Rows by state. Every relay of an outbox reports the same ones."))
	}
	if set.err == nil {
		r.oldest, set.err = r.meter.Float64ObservableGauge("oncemill.outbox.oldest.age", metric.WithUnit("s"),
			metric.WithDescription("How long ago the oldest pending row became due."))
	}
	return r, set.err
}

// Leased records how many rows were taken at once.
func (r *Relay) Leased(ctx context.Context, rows int) {
	r.size.Record(ctx, int64(rows), r.sender.sources.of(scope{}).with(keyTable.String(r.name)).record...)
}

// Died counts a row that was refused for the last time, once that is recorded.
func (r *Relay) Died(ctx context.Context, topic string) {
	r.deaths.Add(ctx, 1, r.sender.labels(r.sender.name(topic), keyTable.String(r.name)).add...)
}

// A Batch is what a publish call of a relay sends. Nil: nobody wants to know. What panics in it, as a propagator or a
// span processor of the program's, ends no relay: its messages go out without it.
type Batch struct {
	relay    *Relay
	span     trace.Span // nil: none
	began    time.Time
	messages []relayedMessage
	index    map[named]int // of the messages, for publishers that know more about one
	links    int
	broken   bool // something has panicked: no more spans
}

type relayedKey struct{}

type named struct{ topic, id string }

type relayedMessage struct {
	destination string     // its name in metrics
	span        trace.Span // nil: none
	age         time.Duration
}

// relayed returns a message that a relay sends by this call of the publisher, or nil.
func relayed(ctx context.Context, topic, id string) *relayedMessage {
	if b, ok := ctx.Value(relayedKey{}).(*Batch); ok {
		if i, found := b.index[named{topic, id}]; found {
			return &b.messages[i]
		}
	}
	return nil
}

// Begin begins a publish call of n messages.
func (r *Relay) Begin(ctx context.Context, n int) (context.Context, *Batch) {
	if !r.sender.on(ctx) {
		return ctx, nil
	}
	b := &Batch{relay: r, began: time.Now(), messages: make([]relayedMessage, 0, n), index: make(map[named]int, n)}
	if tracer := r.sender.tracer(); tracer != nil {
		ctx = b.start(ctx, tracer, n)
	}
	return context.WithValue(WithPropagator(ctx, r.sender.Propagator), relayedKey{}, b), b
}

func (b *Batch) start(ctx context.Context, tracer trace.Tracer, n int) (within context.Context) {
	within = ctx
	defer b.contain()
	started, span := tracer.Start(ctx, "oncemill.outbox.relay", trace.WithNewRoot(),
		trace.WithAttributes(keyTable.String(b.relay.name)))
	if span.IsRecording() {
		span.SetAttributes(keyBatch.Int(n))
	}
	b.span = span
	return started
}

// contain is deferred around what the program has given. Its panic is OpenTelemetry's to handle, once for each batch.
func (b *Batch) contain() {
	if v := recover(); v != nil && !b.broken {
		b.broken = true
		otel.Handle(fmt.Errorf("oncemill: panic in the telemetry of outbox %q: %v\n%s", b.relay.name, v, debug.Stack()))
	}
}

// Send begins to send the next message of the call, and returns its header: with the trace context of the send, unless
// it has one. The age is how long its row waited, if that is known.
func (b *Batch) Send(ctx context.Context, topic, id string, h map[string]string, age time.Duration) map[string]string {
	sender := b.relay.sender
	m := relayedMessage{destination: sender.name(topic), age: age}
	if tracer := sender.tracer(); tracer != nil && !b.broken {
		h = b.trace(ctx, tracer, &m, named{topic, id}, h)
	}
	b.index[named{topic, id}] = len(b.messages)
	b.messages = append(b.messages, m)
	return h
}

// trace begins a message's span.
func (b *Batch) trace(
	ctx context.Context, tracer trace.Tracer, m *relayedMessage, n named, h map[string]string,
) (stamped map[string]string) {
	stamped = h
	defer b.contain()
	ctx, span, created := b.relay.sender.start(ctx, tracer, n, h, false)
	m.span = span
	b.link(created)
	if Injects(ctx, h) {
		h = maps.Clone(h)
		if h == nil {
			h = map[string]string{}
		}
		Inject(ctx, h)
	}
	return h
}

func (b *Batch) link(created trace.SpanContext) {
	if created.IsValid() && b.span.IsRecording() && b.links < maxLinks {
		b.links++
		link(b.span, created, linkCreation)
	}
}

// Sent says what became of the message that was sent as the i-th.
func (b *Batch) Sent(ctx context.Context, i int, err error, unknown bool) {
	defer b.contain()
	m := &b.messages[i]
	if m.span != nil {
		ctx = trace.ContextWithSpan(ctx, m.span)
	}
	r := b.relay
	r.sender.count(ctx, m.destination, err, unknown)
	if err == nil && m.age > 0 {
		r.lag.Record(ctx, (m.age + time.Since(b.began)).Seconds(),
			r.sender.labels(m.destination, keyTable.String(r.name)).record...)
	}
	endSend(m.span, err, unknown)
}

// End ends the call. Failed: nothing was acknowledged.
func (b *Batch) End(ctx context.Context, failed bool) {
	defer b.contain()
	took := time.Since(b.began).Seconds()
	done := map[string]bool{}
	for _, m := range b.messages {
		if !done[m.destination] {
			done[m.destination] = true
			b.relay.sender.took(ctx, m.destination, took, failed)
		}
	}
	if b.span != nil {
		b.span.End()
	}
}
