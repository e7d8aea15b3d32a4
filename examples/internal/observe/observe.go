// Package observe sends an example's traces and metrics to an OpenTelemetry collector, if the environment names one, by
// the variables that OpenTelemetry defines:
//
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 go run ./examples/quickstart
//
// Without an endpoint nothing is sent, and nothing is recorded but what the example reads itself. A program of yours
// does the same with a few lines, or with go.opentelemetry.io/contrib/exporters/autoexport.
package observe

import (
	"context"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/oncemill/oncemill"
)

// Start makes providers for an example of this name; the readers get its metrics as well. Nothing global is changed:
// give the result to policies, relays and publishers, or use Global.
//
// It reads the variables of the exporters (HTTP with protobuf only), OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_TRACES_SAMPLER, OTEL_METRIC_EXPORT_INTERVAL and OTEL_SDK_DISABLED.
//
// Call the function that it returns at the end: it sends what is left, for up to 5 s, even if its context has ended.
func Start(
	ctx context.Context, name string, readers ...metric.Reader,
) (t oncemill.Telemetry, stop func(context.Context), err error) {
	about, err := resource.New(ctx, // what comes later wins
		resource.WithService(), // service.instance.id, which tells two runs apart, and a name made of the program's
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", name)),
		resource.WithFromEnv(),
	)
	if err != nil {
		return t, nil, err
	}
	metrics := []metric.Option{metric.WithResource(about)}
	for _, r := range readers {
		metrics = append(metrics, metric.WithReader(r))
	}
	var ends []func(context.Context) error
	stop = func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		for _, end := range ends {
			if err := end(ctx); err != nil {
				otel.Handle(err)
			}
		}
	}
	if wanted("TRACES") {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return t, nil, err
		}
		provider := trace.NewTracerProvider(trace.WithResource(about), trace.WithBatcher(exporter))
		t.TracerProvider, t.Propagator = provider, propagation.TraceContext{}
		ends = append(ends, provider.Shutdown)
	}
	if wanted("METRICS") {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			stop(ctx)
			return t, nil, err
		}
		metrics = append(metrics, metric.WithReader(metric.NewPeriodicReader(exporter)))
	}
	provider := metric.NewMeterProvider(metrics...)
	t.MeterProvider = provider
	ends = append(ends, provider.Shutdown)
	return t, stop, nil
}

// Global is Start for a program that has one example: its providers become OpenTelemetry's global ones, which are
// everybody's default.
func Global(ctx context.Context, name string, readers ...metric.Reader) (stop func(context.Context), err error) {
	t, stop, err := Start(ctx, name, readers...)
	if err != nil {
		return nil, err
	}
	otel.SetMeterProvider(t.MeterProvider)
	if t.TracerProvider != nil {
		otel.SetTracerProvider(t.TracerProvider)
		otel.SetTextMapPropagator(t.Propagator)
	}
	return stop, nil
}

// wanted says whether the environment names an endpoint for the signal.
func wanted(signal string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_"+signal+"_EXPORTER") == "none" {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

// Claims reads the counter oncemill.claims, by outcome.
func Claims(ctx context.Context, reader *metric.ManualReader) (map[string]int, error) {
	var data metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &data); err != nil {
		return nil, err
	}
	claims := map[string]int{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, ok := m.Data.(metricdata.Sum[int64])
			if !ok || m.Name != "oncemill.claims" {
				continue
			}
			for _, point := range sum.DataPoints {
				outcome, _ := point.Attributes.Value("oncemill.outcome")
				claims[outcome.AsString()] += int(point.Value)
			}
		}
	}
	return claims, nil
}
