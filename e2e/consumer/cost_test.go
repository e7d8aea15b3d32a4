package consumer_test

import (
	"context"
	"strconv"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
)

// With an SDK that keeps no trace a delivery is one object of telemetry, and beside it is what the SDK makes of an unsampled
// span, of the attributes that its sampler is shown, and the text that the record keeps. Other tests must not run beside this one.
func TestProcess_WhatNobodyKeepsCostsSevenAllocations(t *testing.T) {
	w3c := propagation.TraceContext{}
	for name, propagator := range map[string]propagation.TextMapPropagator{
		"W3C's": w3c, "with baggage": propagation.NewCompositeTextMapPropagator(w3c, propagation.Baggage{}),
	} {
		n, allocations := 1_000_000, [2]float64{}
		for i, telemetry := range []oncemill.Telemetry{{}, {
			TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(.01)))),
			MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())),
			Propagator:     propagator,
		}} {
			p := newProcessor(t, newStore(t), consumer.Config{System: "nats", Policy: oncemill.Policy{Telemetry: telemetry}})
			allocations[i] = testing.AllocsPerRun(2000, func() {
				n++
				header := producer.Header{
					producer.HeaderID: strconv.Itoa(n), "Nats-Msg-Id": "x", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
				}
				if d := p.Process(context.Background(), consumer.Delivery{Handler: "charge", Topic: "orders", Count: 1, Header: header, Payload: []byte("x")}, func(context.Context) error { return nil }); d.Action != consumer.Ack {
					t.Fatal(d)
				}
			})
		}
		if more := allocations[1] - allocations[0]; more > 7 {
			t.Errorf("%s: %v allocations more, want at most 7", name, more)
		}
	}
}
