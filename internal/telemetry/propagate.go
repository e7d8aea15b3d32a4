package telemetry

import (
	"context"
	"encoding/hex"
	"maps"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// A header is a message's, whose names have any case.
type header map[string]string

var _ propagation.TextMapCarrier = header(nil)

// Get returns the value of a name. An exact match wins.
func (h header) Get(name string) string {
	if v, ok := h[name]; ok {
		return v
	}
	for k, v := range h {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

// Set sets a value.
func (h header) Set(name, value string) { h[name] = value }

// Keys returns the names.
func (h header) Keys() []string {
	keys := make([]string, 0, len(h))
	for k := range h {
		keys = append(keys, k)
	}
	return keys
}

// Traceparent is the W3C traceparent of the current span, or "" without one.
func Traceparent(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return ""
	}
	trace, span := sc.TraceID(), sc.SpanID()
	text := [...]byte{'0', '0', '-', 35: '-', 52: '-', 53: '0', 54: '0'}
	hex.Encode(text[3:], trace[:])
	hex.Encode(text[36:], span[:])
	if sc.IsSampled() {
		text[54] = '1'
	}
	return string(text[:])
}

// TraceID returns the trace ID of what Traceparent made, or "".
func TraceID(traceparent string) string {
	if len(traceparent) != 55 {
		return ""
	}
	return traceparent[3:35]
}

// Inject writes the trace context of ctx into a message's header with the propagator of ctx. If the header
// has one already, in upper or lower case, it stays: the first to stamp a message is its origin. Baggage alone is no
// trace context.
func Inject(ctx context.Context, h map[string]string) {
	propagator := propagatorOf(ctx)
	if !hasContext(propagator, h) {
		propagator.Inject(ctx, header(h))
	}
}

func hasContext(propagator propagation.TextMapPropagator, h map[string]string) bool {
	for _, field := range propagator.Fields() {
		if strings.EqualFold(field, "baggage") {
			continue
		}
		for name := range h {
			if strings.EqualFold(name, field) {
				return true
			}
		}
	}
	return false
}

// Forget removes what a header says of one copy of a message, under a name in any case.
func Forget(h map[string]string, name string) {
	maps.DeleteFunc(h, func(k, _ string) bool { return strings.EqualFold(k, name) })
}

// ForgetOther is Forget for what has another value. It forgets nothing if there is no value.
func ForgetOther(h map[string]string, name, value string) {
	maps.DeleteFunc(h, func(k, v string) bool { return value != "" && v != value && strings.EqualFold(k, name) })
}

// LinkOriginal links the current span to the run that did the work, by the traceparent that the record keeps. Within a
// delivery it does so for that delivery's own key only.
func LinkOriginal(ctx context.Context, group, handler, id, traceparent string) {
	if traceparent == "" {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	if d, mine := deliveryOf(ctx, group, handler, id); d != nil && !mine {
		return
	}
	carrier := propagation.MapCarrier{"traceparent": traceparent}
	origin := propagation.TraceContext{}.Extract(context.Background(), carrier)
	link(span, trace.SpanContextFromContext(origin), linkOriginal)
}

// Spanless returns a context without the current span, for what goes on after it: deliveries are no part of what
// started their worker.
func Spanless(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, trace.SpanContext{})
}

func link(span trace.Span, to trace.SpanContext, kind string) {
	if to.IsValid() {
		span.AddLink(trace.Link{SpanContext: to, Attributes: []attribute.KeyValue{keyLinkType.String(kind)}})
	}
}
