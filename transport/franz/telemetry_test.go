package franz

import (
	"context"
	"errors"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

func TestPublisher_MessagesThatWereNotSentAreCountedToo(t *testing.T) {
	t.Parallel()
	reader, spans := sdkmetric.NewManualReader(), tracetest.NewSpanRecorder()
	sender, err := telemetry.NewSender(telemetry.Providers{
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)),
	}, telemetry.SystemKafka)
	if err != nil {
		t.Fatal(err)
	}
	p := &Publisher{config: PublisherConfig{}.withDefaults(), sender: sender} // its gate never opens
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	err = p.Publish(ctx, producer.Message{ID: "a", Topic: "orders"}, producer.Message{ID: "b", Topic: "orders"})
	if failures, ok := producer.Failures(err, 2); !ok || len(failures) != 2 || !failures[0].Unknown || !errors.Is(err, gone) {
		t.Errorf("error %v, want two messages that are unknown", err)
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	var n int64
	for _, m := range data.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "messaging.client.sent.messages" {
			for _, point := range sum.DataPoints {
				if failure, _ := point.Attributes.Value("error.type"); failure.AsString() == "unknown" {
					n += point.Value
				}
			}
		}
	}
	if n != 2 || len(spans.Ended()) != 2 {
		t.Errorf("%d messages are counted, and %d spans ended; want 2", n, len(spans.Ended()))
	}
}
