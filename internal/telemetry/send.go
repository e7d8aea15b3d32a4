package telemetry

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// A Sender makes the spans of messages that a publisher sends, and counts them. It is safe for concurrent use.
type Sender struct {
	tracing   *tracing
	providers Providers
	system    string

	sent, duplicates metric.Int64Counter
	duration         metric.Float64Histogram
	destinations     table[sending, *destination]
}

type sending struct{ system, destination string }

func (s sending) own() sending { return sending{strings.Clone(s.system), strings.Clone(s.destination)} }

// A destination has the attributes of what is sent there.
type destination struct {
	spanName         string
	sent             *labels
	refused, unknown *labels
	took, tookError  *labels // the operation's
	client, producer []trace.SpanStartOption
}

// NewSender makes the instruments.
func NewSender(p Providers, system string) (*Sender, error) {
	s := &Sender{tracing: newTracing(p), providers: p, system: system}
	set := maker{meter: p.meter()}
	set.counter(&s.sent, "messaging.client.sent.messages", "{message}", "Messages that were sent, with error.type if they were not acknowledged.")
	set.counter(&s.duplicates, "oncemill.broker.duplicates", "{message}", "Messages that the broker took for duplicates: its own retries of the publisher, or unexpected.")
	set.histogram(&s.duration, "messaging.client.operation.duration", "s", "How long it took until messages were acknowledged, or not.", messageBuckets)
	return s, set.err
}

func (s *Sender) on(ctx context.Context) bool {
	return s.sent.Enabled(ctx) || s.tracing.tracer() != nil
}

func (s *Sender) destination(name string) *destination {
	return s.destinations.of(sending{s.system, name}, sending.own, sending{s.system, other}, newDestination)
}

func newDestination(s sending) *destination {
	system, name, dest := keySystem.String(s.system), keyOpName.String("send"), keyDestination.String(s.destination)
	kind, failed := keyOpType.String("send"), keyErrorType
	attributes := trace.WithAttributes(system, name, kind)
	return &destination{
		spanName:  "send " + s.destination,
		sent:      newLabels(system, name, dest),
		refused:   newLabels(system, name, dest, failed.String(sendRefused)),
		unknown:   newLabels(system, name, dest, failed.String(sendUnknown)),
		took:      newLabels(system, name, kind, dest),
		tookError: newLabels(system, name, kind, dest, failed.String(other)),
		client:    []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), attributes},
		producer:  []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), attributes},
	}
}

// outcome returns the attributes of a message that was sent.
func (d *destination) outcome(err error, unknown bool) *labels {
	switch {
	case err == nil:
		return d.sent
	case unknown:
		return d.unknown
	}
	return d.refused
}

// A Sending is a message on its way. Nil: nobody wants to know.
type Sending struct {
	sender      *Sender
	destination *destination
	span        trace.Span // nil: none
	began       time.Time
	ended       bool
}

// Begin begins to send a message that has an ID. The context is for stamping it: its trace context is the send's, unless
// the message has one. Within a relay, which observes what it sends, nothing is observed.
func (s *Sender) Begin(ctx context.Context, topic, id string, h map[string]string) (context.Context, *Sending) {
	if !s.on(ctx) {
		return ctx, nil
	}
	if _, relayed := ctx.Value(relayedKey{}).(*relayed); relayed {
		return ctx, nil
	}
	flight := &Sending{sender: s, destination: s.destination(topic), began: time.Now()}
	if tracer := s.tracing.tracer(); tracer != nil {
		propagator := s.providers.propagator()
		created := trace.SpanContext{}
		options := flight.destination.producer
		if hasContext(propagator, h) {
			extracted := propagator.Extract(context.Background(), header(h))
			created = trace.SpanContextFromContext(extracted)
			options = flight.destination.client
			if !trace.SpanContextFromContext(ctx).IsValid() {
				ctx = trace.ContextWithRemoteSpanContext(ctx, created)
			}
		}
		ctx, flight.span = tracer.Start(ctx, flight.destination.spanName, options...)
		describeSend(flight.span, topic, id, created)
	}
	return WithPropagator(ctx, s.providers.Propagator), flight
}

func describeSend(span trace.Span, topic, id string, created trace.SpanContext) {
	if span.IsRecording() {
		span.SetAttributes(keyDestination.String(topic), keyMessageID.String(id))
		link(span, created, linkCreation)
	}
}

// End says what became of a message. Unknown: nobody refused it. A second call does nothing.
func (f *Sending) End(ctx context.Context, err error, unknown bool) {
	if f == nil || f.ended {
		return
	}
	f.ended = true
	if f.span != nil {
		ctx = trace.ContextWithSpan(ctx, f.span)
	}
	took := f.destination.took
	if err != nil {
		took = f.destination.tookError
	}
	f.sender.sent.Add(ctx, 1, f.destination.outcome(err, unknown).add...)
	f.sender.duration.Record(ctx, time.Since(f.began).Seconds(), took.record...)
	endSend(f.span, err, unknown)
}

func endSend(span trace.Span, err error, unknown bool) {
	if span == nil {
		return
	}
	if err != nil && span.IsRecording() {
		kind := sendRefused
		if unknown {
			kind = sendUnknown
		}
		span.SetAttributes(keyErrorType.String(kind))
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// Duplicate says that the broker took a message for a duplicate; unexpected: although this publisher did not repeat it.
// Within a relay the span is the relay's.
func (s *Sender) Duplicate(ctx context.Context, f *Sending, topic, id string, unexpected bool) {
	if s.duplicates.Enabled(ctx) {
		result := resultRepeated
		if unexpected {
			result = resultUnexpected
		}
		s.duplicates.Add(ctx, 1, metric.WithAttributes(keySystem.String(s.system), keyResult.String(result)))
	}
	var span trace.Span
	if f != nil {
		span = f.span
	} else if r, ok := ctx.Value(relayedKey{}).(*relayed); ok {
		span = r.span(topic, id)
	}
	if span != nil {
		span.SetAttributes(keyBrokerDuplicate.Bool(true))
	}
}

// relayed is what a relay leaves in the context of a publish call.
type relayed struct{ batch *Batch }

type relayedKey struct{}

func (r *relayed) span(topic, id string) trace.Span {
	for i := range r.batch.messages {
		if m := &r.batch.messages[i]; m.id == id && m.topic == topic && m.span != nil {
			return m.span
		}
	}
	return nil
}

// Create begins the span of a message's creation, if the current span is kept and the message has no trace context yet.
// The context is for stamping it; the function ends the span, with the message's ID.
func Create(ctx context.Context, topic string, h map[string]string) (context.Context, func(id string)) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() || hasContext(propagatorOf(ctx), h) {
		return ctx, func(string) {}
	}
	ctx, span = span.TracerProvider().Tracer(Scope, trace.WithSchemaURL(schema)).Start(ctx, "create "+topic,
		trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(keyOpName.String("create"), keyOpType.String("create"), keyDestination.String(topic)))
	return ctx, func(id string) {
		span.SetAttributes(keyMessageID.String(id))
		span.End()
	}
}
