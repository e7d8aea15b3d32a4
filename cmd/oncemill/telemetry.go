package main

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/oncemill/oncemill"
)

// An observed process has metrics to scrape, and sends them and its traces where OpenTelemetry's variables say.
type observed struct {
	oncemill.Telemetry
	scraped http.Handler
	log     *slog.Logger
	ends    []func(context.Context) error
}

// observe reads the variables of OpenTelemetry. Without an endpoint nothing is sent.
func observe(ctx context.Context, name string, log *slog.Logger) (o *observed, err error) {
	o = &observed{log: log}
	defer func() {
		if err != nil {
			o.end(ctx)
		}
	}()
	about, err := resource.New(ctx, resource.WithService(), resource.WithTelemetrySDK(), // what comes later wins
		resource.WithAttributes(attribute.String("service.name", name)), resource.WithFromEnv())
	if err != nil {
		return o, err
	}
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry))
	if err != nil {
		return o, err
	}
	o.scraped = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	metrics := []metric.Option{metric.WithResource(about), metric.WithReader(reader)}
	sends, err := wanted("METRICS")
	if err != nil {
		return o, err
	}
	if sends {
		to, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return o, err
		}
		metrics = append(metrics, metric.WithReader(metric.NewPeriodicReader(to)))
	}
	meters := metric.NewMeterProvider(metrics...)
	o.MeterProvider, o.ends = meters, append(o.ends, meters.Shutdown)
	if sends, err = wanted("TRACES"); err != nil {
		return o, err
	}
	if sends {
		to, err := otlptracehttp.New(ctx)
		if err != nil {
			return o, err
		}
		tracers := trace.NewTracerProvider(trace.WithResource(about), trace.WithBatcher(to))
		o.TracerProvider, o.Propagator = tracers, propagation.TraceContext{}
		o.ends = append(o.ends, tracers.Shutdown)
	}
	return o, nil
}

// end sends what is left, even if ctx has ended.
func (o *observed) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, end := range o.ends {
		if err := end(ctx); err != nil {
			o.log.WarnContext(ctx, "relay: telemetry", "error", err)
		}
	}
}

// wanted reports whether the environment names an endpoint for a signal.
func wanted(signal string) (bool, error) {
	of := func(name string) string {
		return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_"+signal+name), os.Getenv("OTEL_EXPORTER_OTLP"+name))
	}
	switch protocol := of("_PROTOCOL"); {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"), os.Getenv("OTEL_"+signal+"_EXPORTER") == "none",
		of("_ENDPOINT") == "":
		return false, nil
	case protocol != "" && protocol != "http/protobuf":
		return false, usagef("OTEL_EXPORTER_OTLP_PROTOCOL is %q, and only http/protobuf is spoken", protocol)
	}
	return true, nil
}
