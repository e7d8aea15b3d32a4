package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of log lines that tell which trace they belong to.
const (
	logTraceID = "trace_id"
	logSpanID  = "span_id"
)

// Logger returns a logger whose lines have the trace and span of their context, if there is one. It returns a logger
// that it has made as it is.
func Logger(l *slog.Logger) *slog.Logger {
	if _, ours := l.Handler().(tracedLines); ours {
		return l
	}
	return slog.New(tracedLines{l.Handler()})
}

type tracedLines struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h tracedLines) Handle(ctx context.Context, line slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		line = line.Clone()
		line.AddAttrs(slog.String(logTraceID, sc.TraceID().String()), slog.String(logSpanID, sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements [slog.Handler].
func (h tracedLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	return tracedLines{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h tracedLines) WithGroup(name string) slog.Handler {
	return tracedLines{h.Handler.WithGroup(name)}
}

// Located returns a context for log lines about a message whose span is over: with the trace that the message carries
// in W3C's form. No propagator of the program's is asked: perhaps it has just panicked.
func Located(ctx context.Context, h map[string]string) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, header(h))
}
