package telemetry

import (
	"context"
	"reflect"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Providers say where telemetry goes. What is nil is OpenTelemetry's global one.
type Providers struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

func (p Providers) meter() metric.Meter {
	provider := p.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	return provider.Meter(Scope, metric.WithSchemaURL(schema))
}

// propagator is asked for anew each time: the global one may come later.
func (p Providers) propagator() propagation.TextMapPropagator {
	if p.Propagator != nil {
		return p.Propagator
	}
	return otel.GetTextMapPropagator()
}

// tracing finds the tracer. To start spans that nobody keeps would cost more than all the rest, and the API cannot be
// asked, so it is found out here whether there is an SDK.
type tracing struct {
	given bool // by option
	live  atomic.Pointer[trace.Tracer]
}

func newTracing(p Providers) *tracing {
	t := &tracing{}
	if p.TracerProvider != nil {
		t.given = true
		t.keep(p.TracerProvider)
	}
	return t
}

func (t *tracing) keep(p trace.TracerProvider) *trace.Tracer {
	switch p.(type) {
	case noop.TracerProvider, *noop.TracerProvider:
		return nil
	}
	tracer := p.Tracer(Scope, trace.WithSchemaURL(schema))
	t.live.Store(&tracer)
	return &tracer
}

// tracer returns nil if nobody takes spans.
func (t *tracing) tracer() trace.Tracer {
	live := t.live.Load()
	if live == nil && !t.given {
		if global := otel.GetTracerProvider(); reflect.TypeOf(global) != placeholder {
			live = t.keep(global)
		}
	}
	if live == nil {
		return nil
	}
	return *live
}

// The types of what is global while nobody has set anything.
var (
	placeholder           = placeholderOf(otel.GetTracerProvider())
	placeholderPropagator = placeholderOf(otel.GetTextMapPropagator())
)

func placeholderOf(global any) reflect.Type {
	t := reflect.TypeOf(global)
	if t.Kind() == reflect.Pointer && strings.HasSuffix(t.Elem().PkgPath(), "otel/internal/global") {
		return t
	}
	return nil // something was set before
}

type propagatorKey struct{}

// WithPropagator returns a context in which Inject uses a propagator instead of the global one. Nil: ctx.
func WithPropagator(ctx context.Context, p propagation.TextMapPropagator) context.Context {
	if p == nil {
		return ctx
	}
	return context.WithValue(ctx, propagatorKey{}, p)
}

func propagatorOf(ctx context.Context) propagation.TextMapPropagator {
	if p, ok := ctx.Value(propagatorKey{}).(propagation.TextMapPropagator); ok {
		return p
	}
	if p, ok := ctx.Value(deliveryKey{}).(*Processing); ok && p.consumer.providers.Propagator != nil {
		return p.consumer.providers.Propagator
	}
	return otel.GetTextMapPropagator()
}
