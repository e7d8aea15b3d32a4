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

// Providers say where telemetry goes. A nil provider is OpenTelemetry's global one.
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

// tracing finds the tracer. Starting spans that nobody keeps would cost more than all the rest, and the API cannot be
// asked. So it is found out here whether there is an SDK.
type tracing struct {
	Providers
	live atomic.Pointer[trace.Tracer]
}

// tracer returns nil if nobody takes spans.
func (t *tracing) tracer() trace.Tracer {
	if live := t.live.Load(); live != nil {
		return *live
	}
	provider := t.TracerProvider
	if provider == nil {
		if provider = otel.GetTracerProvider(); placeholder(provider) {
			return nil
		}
	}
	switch provider.(type) {
	case noop.TracerProvider, *noop.TracerProvider:
		return nil
	}
	tracer := provider.Tracer(Scope, trace.WithSchemaURL(schema))
	t.live.Store(&tracer)
	return tracer
}

// placeholder reports whether a provider is the global one while nobody has set anything.
func placeholder(provider trace.TracerProvider) bool {
	t := reflect.TypeOf(provider)
	return t.Kind() == reflect.Pointer && strings.HasSuffix(t.Elem().PkgPath(), "otel/internal/global")
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
	if p, ok := ctx.Value(deliveryKey{}).(*Processing); ok && p.consumer.Propagator != nil {
		return p.consumer.Propagator
	}
	return otel.GetTextMapPropagator()
}
