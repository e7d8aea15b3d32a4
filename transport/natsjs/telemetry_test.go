package natsjs_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/transport/natsjs"
)

// Subjects may have no end: metrics have the stream that took the message.
func TestPublisher_MetricsNameStreamsAndNotSubjects(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	config := natsjs.PublisherConfig{}
	config.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	b := newBench(t, config)
	all := orders(20)
	for i := range all {
		all[i].Topic = fmt.Sprintf("orders.customer-%d", i)
	}
	all[7].Payload = make([]byte, 2<<20) // too large
	all[9].Topic = "nobody.listens"
	if failures := failuresOf(t, b.pub.Publish(t.Context(), all...)); len(failures) != 2 {
		t.Fatalf("failures %v, want two", failures)
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		sum, ok := m.Data.(metricdata.Sum[int64])
		if !ok {
			continue
		}
		for _, p := range sum.DataPoints {
			destination, _ := p.Attributes.Value("messaging.destination.name")
			failure, _ := p.Attributes.Value("error.type")
			got[destination.AsString()+" "+failure.AsString()] += p.Value
		}
	}
	if diff := cmp.Diff(map[string]int64{"orders ": 18, " refused": 1, " unknown": 1}, got); diff != "" {
		t.Errorf("sent by destination and error (-want +got):\n%s", diff)
	}
}

// withSpan runs a worker within a span.
type withSpan struct{ inner *natsjs.Worker }

func (w withSpan) Run(ctx context.Context) error {
	return w.inner.Run(trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})))
}

func TestWorker_DeliveriesAreNoPartOfWhatStartedIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	var inside atomic.Bool
	r.publish(1, oneKey)
	stop := r.start(withSpan{r.worker(func(ctx context.Context, _ jetstream.Msg) error {
		inside.Store(trace.SpanContextFromContext(ctx).IsValid())
		return nil
	})})
	r.finishes(1)
	r.stops(stop)
	if inside.Load() {
		t.Error("the handler works within the span of Run")
	}
}
