package telemetry_test

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// One test, as OpenTelemetry's providers are global.
func TestTelemetry_CountsAndLinks(t *testing.T) {
	reader := metric.NewManualReader()
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")

	meter, err := telemetry.NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	first, work := tracer.Start(t.Context(), "work")
	meter.Claim(first, "billing", "charge", telemetry.Claimed, 1, 42)
	origin := telemetry.Traceparent(first)
	work.End()

	second, duplicate := tracer.Start(t.Context(), "duplicate")
	meter.Claim(second, "billing", "charge", telemetry.DuplicateCompleted, 0, 0)
	telemetry.LinkOriginal(second, origin)
	telemetry.LinkOriginal(second, "")
	telemetry.LinkOriginal(second, "garbage")
	duplicate.End()

	span := recorder.Ended()[1]
	if links := span.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != work.SpanContext().SpanID() {
		t.Errorf("links %v, want one to the run that did the work", links)
	}
	for outcome, want := range map[string]int64{"claimed": 1, "duplicate_completed": 1} {
		if got := counted(t, reader, "oncemill.claims", outcome); got != want {
			t.Errorf("oncemill.claims{%s} is %d, want %d", outcome, got, want)
		}
	}

	header := map[string]string{"Baggage": "user=1"}
	telemetry.Inject(first, header)
	if header["traceparent"] != origin || len(origin) != 55 {
		t.Errorf("injected %v, want %q", header, origin)
	}
	telemetry.Inject(second, header)
	if header["traceparent"] != origin {
		t.Error("a second stamp replaced the first one's trace context")
	}
	foreign := map[string]string{"Traceparent": "of another client's spelling"}
	if telemetry.Inject(first, foreign); len(foreign) != 1 {
		t.Errorf("injected beside %v", foreign)
	}
	if got := telemetry.Traceparent(t.Context()); got != "" {
		t.Errorf("traceparent %q without a span", got)
	}
}

func counted(t *testing.T, reader *metric.ManualReader, name, outcome string) (n int64) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok || m.Name != name {
				continue
			}
			for _, p := range sum.DataPoints {
				if v, _ := p.Attributes.Value("oncemill.outcome"); v.AsString() == outcome {
					n += p.Value
				}
			}
		}
	}
	return n
}
