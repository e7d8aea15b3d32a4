package consumer_test

import (
	"context"
	"strconv"
	"testing"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

// What telemetry costs a message, from delivery to decision, with a store in memory: compare with "unset", where nobody has
// configured anything.
func BenchmarkProcess_Telemetry(b *testing.B) {
	sampled := func(ratio float64) oncemill.Telemetry {
		return oncemill.Telemetry{
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio)))),
			MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
			Propagator:     propagation.TraceContext{},
		}
	}
	for _, c := range []struct {
		name      string
		telemetry oncemill.Telemetry
	}{
		{"unset", oncemill.Telemetry{}},
		{"noop", oncemill.Telemetry{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()}},
		{"sampled 1%", sampled(.01)},
		{"metrics only", oncemill.Telemetry{TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: sampled(0).MeterProvider}},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkProcess(b, c.telemetry)
		})
	}
}

func benchmarkProcess(b *testing.B, telemetry oncemill.Telemetry) {
	p := newProcessor(b, newStore(b), consumer.Config{System: "nats", Policy: oncemill.Policy{Telemetry: telemetry}})
	handle := func(context.Context) error { return nil }
	ctx := context.Background()
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		id := strconv.Itoa(n)
		if n%100_000 == 0 { // a store that is full measures something else
			b.StopTimer()
			p = newProcessor(b, newStore(b), consumer.Config{System: "nats", Policy: oncemill.Policy{Telemetry: telemetry}})
			b.StartTimer()
		}
		header := producer.Header{producer.HeaderID: id, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}
		in := consumer.Delivery{Handler: "charge", Topic: "orders", Count: 1, Header: header, Payload: []byte("x")}
		d := p.Process(ctx, in, handle)
		if d.Action != consumer.Ack {
			b.Fatal(d)
		}
	}
}
