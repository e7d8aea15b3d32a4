// Package observe sends an example's traces and metrics to an OpenTelemetry collector, if the environment names one, by
// the variables that OpenTelemetry defines:
//
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 go run ./examples/nats -embedded
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
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// Start makes providers for an example of this name, and makes them OpenTelemetry's global ones, which are everybody's
// default; the readers get its metrics as well.
//
// It reads the variables of the exporters (HTTP with protobuf only), OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
// OTEL_TRACES_SAMPLER, OTEL_METRIC_EXPORT_INTERVAL and OTEL_SDK_DISABLED.
//
// Call the function that it returns at the end: it sends what is left, for up to 5 s, even if its context has ended.
func Start(ctx context.Context, name string, readers ...metric.Reader) (stop func(context.Context), err error) {
	about, err := resource.New(ctx, // what comes later wins
		resource.WithService(), // service.instance.id, which tells two runs apart, and a name made of the program's
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", name)),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, err
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
			return nil, err
		}
		provider := trace.NewTracerProvider(trace.WithResource(about), trace.WithBatcher(exporter))
		otel.SetTracerProvider(provider)
		otel.SetTextMapPropagator(propagation.TraceContext{})
		ends = append(ends, provider.Shutdown)
	}
	if wanted("METRICS") {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			stop(ctx)
			return nil, err
		}
		metrics = append(metrics, metric.WithReader(metric.NewPeriodicReader(exporter)))
	}
	provider := metric.NewMeterProvider(metrics...)
	otel.SetMeterProvider(provider)
	ends = append(ends, provider.Shutdown)
	return stop, nil
}

// wanted says whether the environment names an endpoint for the signal.
func wanted(signal string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_"+signal+"_EXPORTER") == "none" {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}
