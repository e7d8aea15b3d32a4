package names_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/internal/telemetry"
)

var propagators = map[string]propagation.TextMapPropagator{
	"W3C's":              propagation.TraceContext{},
	"W3C's and baggage":  propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	"baggage":            propagation.Baggage{},
	"baggage, composite": propagation.NewCompositeTextMapPropagator(propagation.Baggage{}),
	"none":               propagation.NewCompositeTextMapPropagator(),
	"another, composite": propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, another{}),
}

// another propagator reads a header of its own.
type another struct{ propagation.TraceContext }

func (another) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	if carrier.Get("Another") == "" {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}))
}

// However the parent is read, it is what the propagator says.
func TestBegin_ReadsAHeaderAsThePropagatorDoes(t *testing.T) {
	t.Parallel()
	for name, p := range propagators {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReading(p)
			const id = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
			for _, text := range []string{
				"00-" + id + "-00", "00-" + id + "-01", "00-" + id + "-02", "00-" + id + "-03", "00-" + id + "-04", "00-" + id + "-ff",
				"01-" + id + "-01", "01-" + id + "-09-more", "ff-" + id + "-01", "00-" + id + "-01-more", "00-" + id + "-0", "00-" + id,
				"00-" + strings.ToUpper(id) + "-01", "00_" + id + "-01", "00-" + strings.Replace(id, "-", "_", 1) + "-01", "00-" + id + "_01",
				"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-" + strings.Repeat("0", 16) + "-01",
				"00-" + id + "-0g", " 00-" + id + "-01", "", "garbage", strings.Repeat("-", 55), strings.Repeat("é", 27) + "-",
			} {
				for _, more := range []map[string]string{
					nil, {"tracestate": "vendor=1"}, {"TraceState": "vendor=1"}, {"tracestate": "not, one"}, {"baggage": "user=1"}, {"Baggage": "user=1"},
					{"Another": "1"}, {"ANOTHER": "1"}, {"trace\u017ftate": "vendor=1"},
				} {
					for _, spelling := range []string{"traceparent", "Traceparent"} {
						h := maps.Clone(more)
						if h == nil {
							h = map[string]string{}
						}
						h[spelling] = text
						r.check(t, h)
					}
				}
			}
		})
	}
}

func FuzzBegin_ReadsAHeaderAsThePropagatorDoes(f *testing.F) {
	readings := map[string]*reading{}
	for name, p := range propagators {
		readings[name] = newReading(p)
	}
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate", "vendor=1")
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "Baggage", "user=1")
	f.Fuzz(func(t *testing.T, traceparent, name, value string) {
		for _, r := range readings {
			r.check(t, map[string]string{"traceparent": traceparent, name: value})
		}
	})
}

// A reading compares what a delivery reads with what its propagator does. All spans are recorded.
type reading struct {
	propagator propagation.TextMapPropagator
	consumer   *telemetry.Consumer
}

func newReading(p propagation.TextMapPropagator) *reading {
	c, err := telemetry.NewConsumer(telemetry.Providers{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample())), Propagator: p,
	})
	if err != nil {
		panic(err)
	}
	return &reading{p, c}
}

// insensitive is a carrier as the conventions ask for it, written in the simplest way.
type insensitive struct{ propagation.MapCarrier }

func (c insensitive) Get(name string) string {
	if v, ok := c.MapCarrier[name]; ok {
		return v
	}
	for k, v := range c.MapCarrier {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

func (r *reading) check(t *testing.T, header map[string]string) {
	t.Helper()
	want := r.propagator.Extract(t.Context(), insensitive{header})
	in := incoming("m1")
	in.Header = header
	ctx, p := r.consumer.Begin(t.Context(), in)
	p.End("ack", telemetry.NoFailure, nil)
	span := trace.SpanFromContext(ctx).(sdktrace.ReadOnlySpan)
	if got, want := span.Parent(), trace.SpanContextFromContext(want); !got.Equal(want) {
		t.Errorf("%q: parent %s, want %s", header, text(got), text(want))
	}
	if got, want := baggage.FromContext(ctx).String(), baggage.FromContext(want).String(); got != want {
		t.Errorf("%q: baggage %q, want %q", header, got, want)
	}
}

func text(sc trace.SpanContext) string {
	b, err := sc.MarshalJSON()
	return fmt.Sprint(string(b), err)
}

// A sampler that does not ask the parent keeps whole spans.
func TestBegin_ASpanOfAnUnsampledParentSaysAllTheSame(t *testing.T) {
	t.Parallel()
	r := newReading(propagation.TraceContext{})
	of := func(flags string) map[attribute.Key]attribute.Value {
		in := incoming("m1")
		in.Header = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-" + flags}
		ctx, p := r.consumer.Begin(t.Context(), in)
		defer p.End("ack", telemetry.NoFailure, nil)
		span := trace.SpanFromContext(ctx).(sdktrace.ReadOnlySpan)
		if len(span.Links()) != 1 || span.SpanKind() != trace.SpanKindConsumer {
			t.Errorf("links %v, kind %v", span.Links(), span.SpanKind())
		}
		found := map[attribute.Key]attribute.Value{}
		for _, a := range span.Attributes() {
			found[a.Key] = a.Value
		}
		return found
	}
	sampled, unsampled := of("01"), of("00")
	if !maps.Equal(sampled, unsampled) || sampled["messaging.operation.name"].AsString() != "process" {
		t.Errorf("attributes %v, want %v", unsampled, sampled)
	}
}
