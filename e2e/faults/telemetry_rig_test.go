package faults_test

import (
	"context"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncemill/oncemill"
)

// An observatory is OpenTelemetry's SDK in memory.
type observatory struct {
	oncemill.Telemetry
	t      *testing.T
	spans  *tracetest.SpanRecorder
	reader *sdkmetric.ManualReader
}

func newObservatory(t *testing.T) *observatory {
	t.Helper()
	o := &observatory{t: t, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	o.Telemetry = oncemill.Telemetry{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(o.spans)),
		MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(o.reader)),
		Propagator:     propagation.TraceContext{},
	}
	return o
}

// named returns the ended spans of a name, in the order of their ends.
func (o *observatory) named(name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range o.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

func attributeOf(s sdktrace.ReadOnlySpan, name string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

// linksOf returns the links of a kind.
func linksOf(s sdktrace.ReadOnlySpan, kind string) (found []sdktrace.Link) {
	for _, l := range s.Links() {
		for _, a := range l.Attributes {
			if a.Key == "oncemill.link.type" && a.Value.AsString() == kind {
				found = append(found, l)
			}
		}
	}
	return found
}

// counted returns what a metric counted, or how often it was recorded, by the values of an attribute.
func (o *observatory) counted(metric, by string) map[string]int {
	o.t.Helper()
	var data metricdata.ResourceMetrics
	if err := o.reader.Collect(context.Background(), &data); err != nil {
		o.t.Fatal(err)
	}
	found, err := counts(&data, metric, by)
	if err != nil {
		o.t.Fatal(err)
	}
	return found
}

// counts returns what a metric counted, or how often it was recorded, by the values of an attribute; "": points without it.
func counts(data *metricdata.ResourceMetrics, metric, by string) (map[string]int, error) {
	found := map[string]int{}
	add := func(set attribute.Set, n int64) {
		if v, _ := set.Value(attribute.Key(by)); n > 0 {
			found[v.AsString()] += int(n)
		}
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != metric {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, int64(p.Count))
				}
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					add(p.Attributes, int64(p.Count))
				}
			default:
				return nil, fmt.Errorf("%s is a %T", metric, d)
			}
		}
	}
	return found, nil
}
