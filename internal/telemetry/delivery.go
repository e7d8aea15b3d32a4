package telemetry

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/internal/contexts"
)

type deliveryKey struct{}

// deliveryOf returns the delivery of a context, if any, and whether a claim is that delivery's own: its handler may use
// guards for other things.
func deliveryOf(ctx context.Context, group, handler, id string) (p *Processing, mine bool) {
	p, _ = ctx.Value(deliveryKey{}).(*Processing)
	return p, p != nil && p.id == id && p.group == group && p.handler == handler
}

// A Consumer makes the spans of deliveries, and measures their handlers. It is safe for concurrent use.
type Consumer struct {
	tracing
	meter *Meter
}

// NewConsumer makes the instruments.
func NewConsumer(p Providers) (*Consumer, error) {
	meter, err := NewMeter(p, nil)
	return &Consumer{tracing{Providers: p}, meter}, err
}

// On reports whether anybody wants to know.
func (c *Consumer) On(ctx context.Context) bool {
	return c.tracer() != nil || c.meter.claims.Enabled(ctx) || c.meter.runTime.Enabled(ctx)
}

// An Incoming is what is known about a delivery.
type Incoming struct {
	Group, Handler string
	System         string
	Destination    string // of low cardinality
	Topic          string
	Origin         string
	ID, KeySource  string // empty: none was found
	Header         map[string]string
	Cause          Detail // if it is a duplicate
	Link           bool   // to the message's trace, instead of being part of it
}

// A Processing is a delivery that is being processed. It is a context, in which the engine finds it.
type Processing struct {
	contexts.Child
	consumer *Consumer
	source   *source // of deliveries that are not told apart, if there are too many
	group    string
	handler  string
	id       string
	header   header
	span     trace.Span // nil: none
	cause    Detail     // if it is a duplicate
}

// Value implements context.Context.
func (p *Processing) Value(key any) any {
	if key == any(deliveryKey{}) {
		return p
	}
	return p.Child.Value(key)
}

// Begin begins a delivery's span. The context is for its processing.
func (c *Consumer) Begin(ctx context.Context, in *Incoming) (context.Context, *Processing) {
	p := &Processing{
		Child: contexts.Under(ctx), consumer: c, group: in.Group, handler: in.Handler, id: in.ID, header: in.Header,
		source: c.meter.sources.of(scope{in.Group, in.Handler, in.System, in.Destination}), cause: in.Cause,
	}
	if tracer := c.tracer(); tracer != nil {
		return p.start(tracer, in), p
	}
	return p, p
}

func (p *Processing) start(tracer trace.Tracer, in *Incoming) (ctx context.Context) {
	ctx = p
	ambient := trace.SpanFromContext(ctx)
	outside := ambient.SpanContext()
	ctx = p.consumer.propagator().Extract(ctx, p.header)
	created := trace.SpanContextFromContext(ctx)
	options := p.source.start
	if outside.IsValid() && !outside.IsRemote() { // of a tracing middleware or an adapter
		if created.Equal(outside) {
			created = trace.SpanContext{} // the message has none
		}
		ctx = trace.ContextWithSpan(ctx, ambient)
	} else if in.Link {
		options = append(slices.Clip(options), trace.WithNewRoot())
	}
	ctx, p.span = tracer.Start(ctx, p.source.span, options...)
	if p.span.IsRecording() {
		p.describe(in)
		link(p.span, created, linkCreation)
	}
	return ctx
}

// describe is for spans that are kept: most are not.
func (p *Processing) describe(in *Incoming) {
	p.span.SetAttributes(keySystem.String(in.System), keyDestination.String(text(in.Topic)),
		keyGroup.String(in.Group), keyHandler.String(in.Handler))
	if in.ID != "" {
		p.span.SetAttributes(keyMessageID.String(text(in.ID)), keyKeySource.String(in.KeySource))
	}
	if in.Origin != "" && in.Origin != in.Topic {
		p.span.SetAttributes(keyOrigin.String(text(in.Origin)))
	}
	if id := p.header.Get(conversation); id != "" {
		p.span.SetAttributes(keyConversation.String(text(id)))
	}
}

// Count counts a delivery that the engine does not know.
func (p *Processing) Count(ctx context.Context, a *Answer) {
	p.consumer.meter.Claim(ctx, p.group, p.handler, p.id, a)
}

// Shadow counts a delivery of shadow mode for which nothing is claimed, as how it would have been answered.
func (p *Processing) Shadow(ctx context.Context, o Outcome) {
	p.consumer.meter.Shadow(ctx, p.group, p.handler, o)
}

// Run says that the handler begins.
func (p *Processing) Run() (began time.Time) {
	p.consumer.meter.active.Add(context.Background(), 1, p.source.plain.add...)
	return time.Now()
}

// Ran says how a handler's run ended, and when it began.
func (p *Processing) Ran(ctx context.Context, began time.Time, f Failure) {
	m := p.consumer.meter
	m.active.Add(ctx, -1, p.source.plain.add...)
	labels := p.source.with(keyOpName.String("process"), keyErrorType.String(string(f)))
	m.runTime.Record(ctx, time.Since(began).Seconds(), labels.record...)
}

// End ends the delivery's span: with what was decided, and with an error if that is one.
func (p *Processing) End(action string, f Failure, err error) {
	if p.span == nil {
		return
	}
	if p.span.IsRecording() {
		p.span.SetAttributes(keyAction.String(action))
		if f != NoFailure {
			p.span.SetAttributes(keyErrorType.String(string(f)))
			if err != nil {
				p.span.SetStatus(codes.Error, text(err.Error()))
			} else {
				p.span.SetStatus(codes.Error, "")
			}
		}
	}
	p.span.End()
}

// Propagate returns a context for a handler whose delivery nobody observes: what a message carries goes on to those
// that the handler produces. It costs something only if a propagator was set.
func (c *Consumer) Propagate(ctx context.Context, h map[string]string) context.Context {
	propagator := c.propagator()
	if len(propagator.Fields()) == 0 || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagator.Extract(WithPropagator(ctx, c.Propagator), header(h))
}
