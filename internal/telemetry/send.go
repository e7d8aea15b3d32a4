package telemetry

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// A Sender makes the spans of messages that a publisher sends, and counts them. It is safe for concurrent use.
type Sender struct {
	tracing
	system string

	sent, duplicates metric.Int64Counter
	duration         metric.Float64Histogram
	sources          sources
	client, producer []trace.SpanStartOption
}

// NewSender makes the instruments.
func NewSender(p Providers, system string) (*Sender, error) {
	attributes := trace.WithAttributes(keySystem.String(system), keyOpName.String("send"), keyOpType.String("send"))
	s := &Sender{
		tracing: tracing{Providers: p}, system: system,
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
	return s.sent.Enabled(ctx) || s.tracer() != nil
}

// name is that of a topic in metrics; empty: it has none. Subjects of NATS have no end: there it is the stream's, which
// only an acknowledgement tells (Landed).
func (s *Sender) name(topic string) string {
	if s.system == SystemNATS {
		return ""
	}
	return topic
}

// labels are the attributes of what goes to a destination, whose name in metrics may be empty.
func (s *Sender) labels(destination string, more ...attribute.KeyValue) *labels {
	return s.sources.of(scope{system: s.system, destination: destination}).with(more...)
}

// count counts a message that was sent.
func (s *Sender) count(ctx context.Context, destination string, err error, unknown bool) {
	s.sent.Add(ctx, 1, s.labels(destination, opSend, keyErrorType.String(problem(err, unknown))).add...)
}

// took records how long an operation took, in seconds.
func (s *Sender) took(ctx context.Context, destination string, seconds float64, failed bool) {
	kind := ""
	if failed {
		kind = other
	}
	labels := s.labels(destination, opSend, keyOpType.String("send"), keyErrorType.String(kind))
	s.duration.Record(ctx, seconds, labels.record...)
}

var opSend = keyOpName.String("send")

// problem is the error.type of a message.
func problem(err error, unknown bool) string {
	switch {
	case err == nil:
		return ""
	case unknown:
		return sendUnknown
	}
	return sendRefused
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
	if ctx.Value(relayedKey{}) != nil {
		return ctx, nil
	}
	sending := &Sending{sender: s, destination: s.name(topic), began: time.Now()}
	if tracer := s.tracer(); tracer != nil {
		ctx, sending.span, _ = s.start(ctx, tracer, named{topic, id}, h, true)
	}
	return WithPropagator(ctx, s.Propagator), sending
}

// start begins a message's span, and returns the trace context that the message has, if any. That is the parent, unless
// the sender prefers the current span, and there is one. For a sender that does not, as the current span is a batch's,
// a message without one begins a trace.
func (s *Sender) start(
	ctx context.Context, tracer trace.Tracer, n named, h map[string]string, current bool,
) (context.Context, trace.Span, trace.SpanContext) {
	var created trace.SpanContext
	options := s.producer
	if propagator := s.propagator(); hasContext(propagator, h) {
		created = trace.SpanContextFromContext(propagator.Extract(context.Background(), header(h)))
		options = s.client
		if !current || !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, created)
		}
	}
	root := !current && !created.IsValid()
	if root {
		options = append(slices.Clip(options), trace.WithNewRoot())
	}
	ctx, span := tracer.Start(ctx, "send "+text(n.topic), options...)
	if span.IsRecording() {
		span.SetAttributes(keyDestination.String(text(n.topic)), keyMessageID.String(text(n.id)))
		link(span, created, linkCreation)
	}
	if root {
		created = span.SpanContext()
	}
	return ctx, span, created
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
	f.sender.count(ctx, f.destination, err, unknown)
	f.sender.took(ctx, f.destination, f.took.Seconds(), err != nil)
	endSend(f.span, err, unknown)
}

func endSend(span trace.Span, err error, unknown bool) {
	if span == nil {
		return
	}
	if err != nil && span.IsRecording() {
		span.SetAttributes(keyErrorType.String(problem(err, unknown)))
		span.SetStatus(codes.Error, text(err.Error()))
	}
	span.End()
}

// Landed says which stream has taken a message: that is its destination in metrics. Within a relay they are the
// relay's.
func (s *Sender) Landed(ctx context.Context, f *Sending, topic, id, stream string) {
	if f != nil {
		f.destination = stream
	} else if m := relayed(ctx, topic, id); m != nil {
		m.destination = stream
	}
}

// Duplicate says that the broker took a message for a duplicate; unexpected: although this publisher did not repeat it.
// Within a relay the span is the relay's.
func (s *Sender) Duplicate(ctx context.Context, f *Sending, topic, id string, unexpected bool) {
	result := resultRepeated
	if unexpected {
		result = resultUnexpected
	}
	s.duplicates.Add(ctx, 1, s.labels("", keyResult.String(result)).add...)
	var span trace.Span
	if f != nil {
		span = f.span
	} else if m := relayed(ctx, topic, id); m != nil {
		span = m.span
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
