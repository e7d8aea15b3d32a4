package telemetry

import (
	"context"
	"reflect"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// A delivery is what the engine finds in a context about the delivery that it is asked for.
type delivery struct {
	source             *source // of deliveries that are not told apart, if there are too many
	group, handler, id string
	cause              Detail // if it is a duplicate

	propagator propagation.TextMapPropagator // nil: the global one
}

type deliveryKey struct{}

// deliveryOf returns the delivery of a context, if any, and whether a claim is that delivery's own: its handler may use
// guards for other things.
func deliveryOf(ctx context.Context, group, handler, id string) (d *delivery, mine bool) {
	d, _ = ctx.Value(deliveryKey{}).(*delivery)
	return d, d != nil && d.id == id && d.group == group && d.handler == handler
}

// A Consumer makes the spans of deliveries, and measures their handlers. It is safe for concurrent use.
type Consumer struct {
	meter     *Meter
	tracing   *tracing
	providers Providers
}

// NewConsumer makes the instruments.
func NewConsumer(p Providers) (*Consumer, error) {
	meter, err := NewMeter(p, nil)
	if err == nil {
		err = meter.watchHandlers(p.meter())
	}
	return &Consumer{meter, newTracing(p), p}, err
}

// On reports whether anybody wants to know.
func (c *Consumer) On(ctx context.Context) bool {
	return c.tracing.tracer() != nil || c.meter.claims.Enabled(ctx) || c.meter.runTime.Enabled(ctx)
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

// A Processing is a delivery that is being processed.
type Processing struct {
	consumer *Consumer
	delivery delivery
	span     trace.Span // nil: none
}

// Begin begins a delivery's span. The context is for its processing.
func (c *Consumer) Begin(ctx context.Context, in *Incoming) (context.Context, *Processing) {
	p := &Processing{consumer: c, delivery: delivery{
		source: c.meter.sources.source(scope{in.Group, in.Handler, in.System, in.Destination}),
		group:  in.Group, handler: in.Handler, id: in.ID, cause: in.Cause, propagator: c.providers.Propagator,
	}}
	ctx = context.WithValue(ctx, deliveryKey{}, &p.delivery)
	if tracer := c.tracing.tracer(); tracer != nil {
		ctx = p.start(ctx, tracer, in)
	}
	return ctx, p
}

func (p *Processing) start(ctx context.Context, tracer trace.Tracer, in *Incoming) context.Context {
	ambient := trace.SpanFromContext(ctx)
	ctx = p.consumer.providers.propagator().Extract(ctx, header(in.Header))
	created := trace.SpanContextFromContext(ctx)
	own := ambient.SpanContext().IsValid() && !ambient.SpanContext().IsRemote()
	if own && created.Equal(ambient.SpanContext()) {
		created = trace.SpanContext{} // the message has none
	}
	options := p.delivery.source.start
	switch {
	case own: // of a tracing middleware or an adapter, outside
		ctx = trace.ContextWithSpan(ctx, ambient)
	case in.Link:
		options = append(options[:len(options):len(options)], trace.WithNewRoot())
	}
	ctx, p.span = tracer.Start(ctx, p.delivery.source.spanName, options...)
	if p.span.IsRecording() {
		p.describe(in)
		link(p.span, created, linkCreation)
	}
	return ctx
}

// describe is for spans that are kept: most are not.
func (p *Processing) describe(in *Incoming) {
	p.span.SetAttributes(keySystem.String(in.System), keyDestination.String(in.Topic), keyGroup.String(in.Group), keyHandler.String(in.Handler))
	if in.ID != "" {
		p.span.SetAttributes(keyMessageID.String(in.ID), keyKeySource.String(in.KeySource))
	}
	if in.Origin != "" && in.Origin != in.Topic {
		p.span.SetAttributes(keyOrigin.String(in.Origin))
	}
	if id := header(in.Header).Get(conversation); id != "" {
		p.span.SetAttributes(keyConversation.String(id))
	}
}

// Count counts a delivery of which the engine does not know.
func (p *Processing) Count(ctx context.Context, a *Answer) {
	d := &p.delivery
	p.consumer.meter.Claim(ctx, d.group, d.handler, d.id, a)
}

// Run says that the handler begins.
func (p *Processing) Run() time.Time {
	p.delivery.source.active.Add(1)
	return time.Now()
}

// Ran says how a handler's run ended that began at a time.
func (p *Processing) Ran(ctx context.Context, began time.Time, f Failure) {
	m := p.consumer.meter
	p.delivery.source.active.Add(-1)
	m.runTime.Record(ctx, time.Since(began).Seconds(), p.delivery.source.run(f).record...)
}

// End ends the delivery's span: with what was decided, and with an error if that is one.
func (p *Processing) End(action string, f Failure, err error) {
	if p.span == nil {
		return
	}
	if p.span.IsRecording() {
		p.span.SetAttributes(keyAction.String(action))
		if f != NoFailure {
			p.span.SetAttributes(keyErrorType.String(f.String()))
			if err != nil {
				p.span.SetStatus(codes.Error, err.Error())
			} else {
				p.span.SetStatus(codes.Error, "")
			}
		}
	}
	p.span.End()
}

// Propagate returns a context for a handler whose delivery nobody observes: what a message carries goes on to those that
// the handler produces. It costs something only if a propagator was set.
func (c *Consumer) Propagate(ctx context.Context, h map[string]string) context.Context {
	propagator := c.providers.propagator()
	if reflect.TypeOf(propagator) == placeholderPropagator || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagator.Extract(WithPropagator(ctx, c.providers.Propagator), header(h))
}
