package telemetry

import (
	"context"
	"maps"
	"time"

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

// A Batch is what a publish call of a relay sends. Nil: nobody wants to know.
type Batch struct {
	relay    *Relay
	span     trace.Span // nil: none
	began    time.Time
	messages []relayedMessage
	index    map[named]int // of the messages, for publishers that know more about one
	links    int
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
		ctx, b.span = tracer.Start(ctx, "oncemill.outbox.relay", trace.WithNewRoot(),
			trace.WithAttributes(keyTable.String(r.name), keyBatch.Int(n)))
	}
	return context.WithValue(WithPropagator(ctx, r.sender.Propagator), relayedKey{}, b), b
}

// Send begins to send the next message of the call, and returns its header: with the trace context of the send, unless
// it has one. The age is how long its row waited, if that is known.
func (b *Batch) Send(ctx context.Context, topic, id string, h map[string]string, age time.Duration) map[string]string {
	sender := b.relay.sender
	m := relayedMessage{destination: sender.name(topic), age: age}
	if tracer := sender.tracer(); tracer != nil {
		var created trace.SpanContext
		ctx, m.span, created = sender.start(ctx, tracer, named{topic, id}, h, false)
		if b.span.IsRecording() && b.links < maxLinks && created.IsValid() {
			b.links++
			link(b.span, created, linkCreation)
		}
		if !hasContext(sender.propagator(), h) {
			if h = maps.Clone(h); h == nil {
				h = map[string]string{}
			}
			sender.propagator().Inject(ctx, header(h))
		}
	}
	b.index[named{topic, id}] = len(b.messages)
	b.messages = append(b.messages, m)
	return h
}

// Sent says what became of the message that was sent as the i-th.
func (b *Batch) Sent(ctx context.Context, i int, err error, unknown bool) {
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
