package telemetry

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"strings"
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
	table  *labels
	name   string
	states [2]metric.ObserveOption // pending, dead
	ages   metric.ObserveOption
	spans  []trace.SpanStartOption

	lag     metric.Float64Histogram
	size    metric.Int64Histogram
	deaths  metric.Int64Counter
	pending metric.Int64ObservableGauge
	oldest  metric.Float64ObservableGauge
	meter   metric.Meter

	destinations table[string, *labels]
}

// NewRelay makes the instruments. The table names the outbox, the system that of the broker.
func NewRelay(p Providers, table, system string) (*Relay, error) {
	sender, err := NewSender(p, system)
	if err != nil {
		return nil, err
	}
	name := keyTable.String(table)
	r := &Relay{
		sender: sender, name: table, table: newLabels(name), meter: p.meter(),
		states: [2]metric.ObserveOption{
			metric.WithAttributes(name, keyRowState.String(rowsPending)),
			metric.WithAttributes(name, keyRowState.String(rowsDead)),
		},
		ages:  metric.WithAttributes(name),
		spans: []trace.SpanStartOption{trace.WithNewRoot(), trace.WithAttributes(name)},
	}
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
	if r.size.Enabled(ctx) {
		r.size.Record(ctx, int64(rows), r.table.record...)
	}
}

// Died counts a row that was refused for the last time, once that is recorded.
func (r *Relay) Died(ctx context.Context, topic string) {
	if r.deaths.Enabled(ctx) {
		r.deaths.Add(ctx, 1, r.labelsOf(r.sender.name(topic)).add...)
	}
}

// labelsOf returns attributes of a destination, whose name may be empty.
func (r *Relay) labelsOf(name string) *labels {
	return r.destinations.of(name, strings.Clone, other, func(name string) *labels {
		return newLabels(named(name, keyTable.String(r.name), keySystem.String(r.sender.system))...)
	})
}

// A Batch is what a publish call of a relay sends. Nil: nobody wants to know. What panics in it, as a propagator or a
// span processor of the program's, ends no relay: its messages go out without it.
type Batch struct {
	relay    *Relay
	span     trace.Span // nil: none
	began    time.Time
	messages []relayedMessage
	links    int
	broken   bool // something has panicked: no more spans
}

type relayedMessage struct {
	topic, id   string
	destination string     // its name in metrics
	span        trace.Span // nil: none
	age         time.Duration
}

// Begin begins a publish call of n messages.
func (r *Relay) Begin(ctx context.Context, n int) (context.Context, *Batch) {
	if !r.sender.on(ctx) {
		return ctx, nil
	}
	b := &Batch{relay: r, began: time.Now(), messages: make([]relayedMessage, 0, n)}
	if tracer := r.sender.tracing.tracer(); tracer != nil {
		ctx = b.start(ctx, tracer, n)
	}
	return context.WithValue(WithPropagator(ctx, r.sender.providers.Propagator), relayedKey{}, &relayed{batch: b}), b
}

func (b *Batch) start(ctx context.Context, tracer trace.Tracer, n int) (within context.Context) {
	within = ctx
	defer b.contain()
	started, span := tracer.Start(ctx, "oncemill.outbox.relay", b.relay.spans...)
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
	m := relayedMessage{topic: topic, id: id, destination: sender.name(topic), age: age}
	if tracer := sender.tracing.tracer(); tracer != nil && !b.broken {
		h = b.trace(ctx, tracer, &m, h)
	}
	b.messages = append(b.messages, m)
	return h
}

// trace begins a message's span.
func (b *Batch) trace(
	ctx context.Context, tracer trace.Tracer, m *relayedMessage, h map[string]string,
) (stamped map[string]string) {
	stamped = h
	defer b.contain()
	sender := b.relay.sender
	propagator := sender.providers.propagator()
	options := sender.producer
	var created trace.SpanContext
	known := hasContext(propagator, h)
	if known {
		ctx = propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), header(h))
		created = trace.SpanContextFromContext(ctx)
		options = sender.client
		b.link(created)
	}
	ctx, m.span = tracer.Start(ctx, "send "+text(m.topic), options...)
	describeSend(m.span, m.topic, m.id, created)
	if !known {
		if h = maps.Clone(h); h == nil {
			h = map[string]string{}
		}
		propagator.Inject(ctx, header(h))
	}
	return h
}

func (b *Batch) link(created trace.SpanContext) {
	if b.span.IsRecording() && b.links < maxLinks {
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
	r.sender.sent.Add(ctx, 1, r.sender.destination(m.destination).outcome(err, unknown).add...)
	if err == nil && m.age > 0 {
		r.lag.Record(ctx, (m.age + time.Since(b.began)).Seconds(), r.labelsOf(m.destination).record...)
	}
	endSend(m.span, err, unknown)
}

// End ends the call. Failed: nothing was acknowledged.
func (b *Batch) End(ctx context.Context, failed bool) {
	defer b.contain()
	took := time.Since(b.began).Seconds()
	done := map[*destination]bool{}
	for _, m := range b.messages {
		destination := b.relay.sender.destination(m.destination)
		if done[destination] {
			continue
		}
		done[destination] = true
		labels := destination.took
		if failed {
			labels = destination.tookError
		}
		b.relay.sender.duration.Record(ctx, took, labels.record...)
	}
	if b.span != nil {
		b.span.End()
	}
}
