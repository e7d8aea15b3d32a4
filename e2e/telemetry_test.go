package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"
)

// maxSets is few, so that a test can reach it.
const maxSets = 150

// The telemetry of this process, as a program sets it up: OpenTelemetry's providers are global.
var (
	tracing  = trace.NewTracerProvider(trace.WithSpanProcessor(processed))
	registry = prometheus.NewRegistry()
	metrics  = promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}) // exemplars need OpenMetrics
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		panic(err)
	}
	measuring := metric.NewMeterProvider(metric.WithReader(reader), metric.WithCardinalityLimit(maxSets))
	otel.SetTracerProvider(tracing)
	otel.SetMeterProvider(measuring)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	status := m.Run()
	err = errors.Join(tracing.Shutdown(context.Background()), measuring.Shutdown(context.Background()))
	http.DefaultClient.CloseIdleConnections()
	if err := errors.Join(err, goleak.Find()); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	return status
}

// processed knows the outcome of each processing span that ended.
var processed = &outcomes{of: map[string][]string{}}

// outcomes are those of spans, by trace.
type outcomes struct {
	mu sync.Mutex
	of map[string][]string
}

func (o *outcomes) OnStart(context.Context, trace.ReadWriteSpan) {}
func (o *outcomes) Shutdown(context.Context) error               { return nil }
func (o *outcomes) ForceFlush(context.Context) error             { return nil }

func (o *outcomes) OnEnd(s trace.ReadOnlySpan) {
	for _, a := range s.Attributes() {
		if a.Key == "oncemill.outcome" {
			o.mu.Lock()
			id := s.SpanContext().TraceID().String()
			o.of[id] = append(o.of[id], a.Value.AsString())
			o.mu.Unlock()
		}
	}
}

func (o *outcomes) ofTrace(id string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[id]
}

// serveMetrics serves /metrics on the loopback interface.
func serveMetrics(t *testing.T) (address string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	return serve(t, mux)
}

// until polls for a condition.
func until(t *testing.T, waitLimit time.Duration, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}
