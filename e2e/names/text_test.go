package names_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// OTLP's strings are UTF-8: of one that is not, an exporter drops every span, or every metric, that it has at hand. So does a
// collector of those that are too large.
func TestTelemetry_WhatAMessageHoldsIsToldAsUTF8OfBoundedLength(t *testing.T) {
	t.Parallel()
	bad := "a\xffb" + strings.Repeat("é", 1<<20)
	b := newBench()

	in := incoming("m1")
	in.Topic, in.Origin, in.Destination, in.Header = bad, bad+"2", bad, map[string]string{"correlation_id": bad}
	ctx, p := b.consumer(t).Begin(t.Context(), in)
	b.meter(t).Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed, Attempt: 1})
	p.Ran(ctx, p.Run(), telemetry.FailedOther)
	p.End("retry", telemetry.FailedOther, errors.New("no such customer: "+bad))

	sender, err := telemetry.NewSender(b.Providers, telemetry.SystemKafka)
	if err != nil {
		t.Fatal(err)
	}
	ctx, sending := sender.Begin(t.Context(), bad, bad, nil)
	sending.End(ctx, errors.New("no such topic: "+bad), false)

	ctx, span := b.tracer.Start(telemetry.WithPropagator(t.Context(), b.Propagator), "work")
	_, created := telemetry.Create(ctx, bad, nil)
	created(bad)
	span.End()

	ended := b.spans.Ended()
	if len(ended) != 4 {
		t.Fatalf("%d spans, want 4", len(ended))
	}
	for _, span := range ended {
		wantUTF8(t, span.Name(), span.Name(), span.Status().Description)
		wantUTF8Attributes(t, span.Name(), span.Attributes())
	}
	var data metricdata.ResourceMetrics
	if err := b.reader.Collect(context.Background(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					wantUTF8Attributes(t, m.Name, p.Attributes.ToSlice())
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					wantUTF8Attributes(t, m.Name, p.Attributes.ToSlice())
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					wantUTF8Attributes(t, m.Name, p.Attributes.ToSlice())
				}
			default:
				t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
}

func wantUTF8Attributes(t *testing.T, of string, attributes []attribute.KeyValue) {
	t.Helper()
	for _, a := range attributes {
		wantUTF8(t, of, a.Value.String())
	}
}

func wantUTF8(t *testing.T, of string, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !utf8.ValidString(s) || len(s) > 5000 {
			t.Errorf("%.20q has %d bytes: %.20q", of, len(s), s)
		}
	}
}
