package names_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/internal/telemetry"
)

func TestLogger_NamesTheTraceOfALine(t *testing.T) {
	t.Parallel()
	b := newBench()
	var text strings.Builder
	log := telemetry.Logger(slog.New(slog.NewTextHandler(&text, nil)))
	if telemetry.Logger(log) != log {
		t.Error("a logger was wrapped twice")
	}
	ctx, span := b.tracer.Start(t.Context(), "work")
	log.With("a", 1).InfoContext(ctx, "with")
	log.Info("without")
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if want := "trace_id=" + span.SpanContext().TraceID().String(); !strings.Contains(lines[0], want) {
		t.Errorf("%q lacks %q", lines[0], want)
	}
	if strings.Contains(lines[1], "trace_id") {
		t.Errorf("%q has a trace", lines[1])
	}
	const header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	located := telemetry.Located(telemetry.WithPropagator(t.Context(), b.Propagator), map[string]string{"traceparent": header})
	if got := telemetry.Traceparent(located); got != header {
		t.Errorf("a message's line is located at %q, want %q", got, header)
	}
}

// It is what a line about a panic is written with.
func TestLocated_AsksNoPropagatorOfTheProgram(t *testing.T) {
	t.Parallel()
	const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	ctx := telemetry.WithPropagator(t.Context(), faulty{})
	if located := telemetry.Located(ctx, map[string]string{"Traceparent": traceparent}); telemetry.Traceparent(located) != traceparent {
		t.Errorf("located at %v", located)
	}
}

// A faulty propagator panics with what it is given to read, or to write to.
type faulty struct{ propagation.TraceContext }

func (faulty) Extract(context.Context, propagation.TextMapCarrier) context.Context {
	panic("extract")
}

func (faulty) Inject(context.Context, propagation.TextMapCarrier) { panic("inject") }
