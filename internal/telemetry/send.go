package telemetry

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
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
	client, producer []trace.SpanStartOption
}

type sending struct{ system, destination string }

func (s sending) own() sending { return sending{strings.Clone(s.system), strings.Clone(s.destination)} }

// A destination has the attributes of what is sent there.
type destination struct {
	sent             *labels
	refused, unknown *labels
	took, tookError  *labels // the operation's
}

// NewSender makes the instruments.
func NewSender(p Providers, system string) (*Sender, error) {
	attributes := trace.WithAttributes(keySystem.String(system), keyOpName.String("send"), keyOpType.String("send"))
	s := &Sender{
		tracing: newTracing(p), providers: p, system: system,
		client:   []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), attributes},
		producer: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), attributes},
	}
	set := maker{meter: p.meter()}
	set.counter(&s.sent, "messaging.client.sent.messages", "{message}",
		"Messages that were sent, with error.type if they were not acknowledged.")
	set.counter(&s.duplicates, "oncemill.broker.duplicates", "{message}",
		"Messages that the broker took for duplicates: its own retries of the publisher, or unexpected.")
	set.histogram(&s.duration, "messaging.client.operation.duration",
		"How long it took until messages were acknowledged, or not.", messageBuckets)
	return s, set.err
}

func (s *Sender) on(ctx context.Context) bool {
	return s.sent.Enabled(ctx) || s.tracing.tracer() != nil
}

// name is that of a topic in metrics; empty: it has none. Subjects of NATS have no end: there it is the stream's, which
// only an acknowledgement tells (Landed).
func (s *Sender) name(topic string) string {
	if s.system == SystemNATS {
		return ""
	}
	return topic
}

// destination returns that of a name in metrics, which may be empty.
func (s *Sender) destination(name string) *destination {
	return s.destinations.of(sending{s.system, name}, sending.own, sending{s.system, other}, newDestination)
}

func newDestination(s sending) *destination {
	system, name, kind := keySystem.String(s.system), keyOpName.String("send"), keyOpType.String("send")
	failed := keyErrorType
	return &destination{
		sent:      newLabels(named(s.destination, system, name)...),
		refused:   newLabels(named(s.destination, system, name, failed.String(sendRefused))...),
		unknown:   newLabels(named(s.destination, system, name, failed.String(sendUnknown))...),
		took:      newLabels(named(s.destination, system, name, kind)...),
		tookError: newLabels(named(s.destination, system, name, kind, failed.String(other))...),
	}
}

// named adds the name of a destination, if it has one.
func named(destination string, attributes ...attribute.KeyValue) []attribute.KeyValue {
	if destination == "" {
		return attributes
	}
	return append(attributes, keyDestination.String(text(destination)))
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
	destination string     // its name in metrics
	span        trace.Span // nil: none
	began       time.Time
	took        time.Duration // 0: no answer yet
	ended       bool
}

// Begin begins to send a message that has an ID. The context is for stamping it: its trace context is the send's,
// unless the message has one. Within a relay, which observes what it sends, nothing is observed.
func (s *Sender) Begin(ctx context.Context, topic, id string, h map[string]string) (context.Context, *Sending) {
	if !s.on(ctx) {
		return ctx, nil
	}
	if _, relayed := ctx.Value(relayedKey{}).(*relayed); relayed {
		return ctx, nil
	}
	flight := &Sending{sender: s, destination: s.name(topic), began: time.Now()}
	if tracer := s.tracing.tracer(); tracer != nil {
		propagator := s.providers.propagator()
		created := trace.SpanContext{}
		options := s.producer
		if hasContext(propagator, h) {
			extracted := propagator.Extract(context.Background(), header(h))
			created = trace.SpanContextFromContext(extracted)
			options = s.client
			if !trace.SpanContextFromContext(ctx).IsValid() {
				ctx = trace.ContextWithRemoteSpanContext(ctx, created)
			}
		}
		ctx, flight.span = tracer.Start(ctx, "send "+text(topic), options...)
		describeSend(flight.span, topic, id, created)
	}
	return WithPropagator(ctx, s.providers.Propagator), flight
}

func describeSend(span trace.Span, topic, id string, created trace.SpanContext) {
	if span.IsRecording() {
		span.SetAttributes(keyDestination.String(text(topic)), keyMessageID.String(text(id)))
		link(span, created, linkCreation)
	}
}

// Answered says that there is an answer, or that nobody waits for it any more: End may come when others have theirs.
func (f *Sending) Answered() {
	if f != nil {
		f.took = time.Since(f.began)
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
	if f.took == 0 {
		f.Answered()
	}
	destination := f.sender.destination(f.destination)
	took := destination.took
	if err != nil {
		took = destination.tookError
	}
	f.sender.sent.Add(ctx, 1, destination.outcome(err, unknown).add...)
	f.sender.duration.Record(ctx, f.took.Seconds(), took.record...)
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
		span.SetStatus(codes.Error, text(err.Error()))
	}
	span.End()
}

// Landed says which stream has taken a message: that is its destination in metrics. Within a relay they are the
// relay's.
func (s *Sender) Landed(ctx context.Context, f *Sending, topic, id, stream string) {
	if f != nil {
		f.destination = stream
	} else if r, ok := ctx.Value(relayedKey{}).(*relayed); ok {
		if m := r.find(topic, id); m != nil {
			m.destination = stream
		}
	}
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
		if m := r.find(topic, id); m != nil {
			span = m.span
		}
	}
	if span != nil {
		span.SetAttributes(keyBrokerDuplicate.Bool(true))
	}
}

// Create begins the span of a message's creation, if the current span is kept and the message has no trace context yet.
// The context is for stamping it; the function ends the span, with the message's ID.
func Create(ctx context.Context, topic string, h map[string]string) (context.Context, func(id string)) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() || hasContext(propagatorOf(ctx), h) {
		return ctx, func(string) {}
	}
	ctx, span = span.TracerProvider().Tracer(Scope, trace.WithSchemaURL(schema)).Start(ctx, "create "+text(topic),
		trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(
			keyOpName.String("create"), keyOpType.String("create"), keyDestination.String(text(topic))))
	return ctx, func(id string) {
		span.SetAttributes(keyMessageID.String(text(id)))
		span.End()
	}
}
