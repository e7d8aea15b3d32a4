package telemetry

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// A Server makes the spans of HTTP requests that have none, so that each request has a trace of its own. It is safe for
// concurrent use.
type Server struct {
	tracing
	refusals metric.Int64Counter
	sources  sources
}

// NewServer makes the instruments.
func NewServer(p Providers) (*Server, error) {
	s := &Server{tracing: tracing{Providers: p}}
	set := maker{meter: p.meter()}
	set.counter(&s.refusals, "oncemill.webhook.refusals", "{request}", "Webhooks that were not answered with 200.")
	return s, set.err
}

// Refused counts a webhook of a sender that was not answered with 200.
func (s *Server) Refused(ctx context.Context, group, sender string, r Refusal) {
	source := s.sources.of(scope{group: group, handler: sender})
	s.refusals.Add(ctx, 1, source.with(keyErrorType.String(string(r))).add...)
}

// Begin begins the span of a request, unless something outside has, as otelhttp does. It reads the trace context that
// the request carries, unless somebody has. The response must go to the writer that it returns. End must be called.
func (s *Server) Begin(w http.ResponseWriter, r *http.Request) (_ http.ResponseWriter, _ *http.Request, end func()) {
	ctx := WithPropagator(r.Context(), s.Propagator)
	outside := trace.SpanContextFromContext(ctx)
	if !outside.IsValid() {
		ctx = s.propagator().Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	tracer := s.tracer()
	if tracer == nil || outside.IsValid() && !outside.IsRemote() {
		return w, r.WithContext(ctx), func() {}
	}
	// url.path is left out: the paths of webhooks may hold secrets.
	name, method := r.Method, Method(r.Method)
	if method == other {
		name = "HTTP"
	}
	attributes := []attribute.KeyValue{keyMethod.String(method), keyScheme.String("http")}
	if r.TLS != nil {
		attributes[1] = keyScheme.String("https")
	}
	if route := strings.TrimLeft(strings.TrimPrefix(r.Pattern, r.Method+" "), " \t"); route != "" {
		name += " " + text(route)
		attributes = append(attributes, keyRoute.String(text(route)))
	}
	ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))
	answer := &answer{ResponseWriter: w}
	return answer, r.WithContext(ctx), func() { answer.end(span) }
}

// methods are those that HTTP knows; the conventions allow no others as values.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// Method is a request's method, or _OTHER: a client may send any.
func Method(method string) string {
	if !slices.Contains(methods, method) {
		return other
	}
	return method
}

// An answer knows the status of a response.
type answer struct {
	http.ResponseWriter
	status int // 0: nothing was written
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap is what http.ResponseController calls.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) end(span trace.Span) {
	switch a.status {
	case 0: // a panic, which ends the connection
		span.SetAttributes(keyErrorType.String(string(FailedPanic)))
		span.SetStatus(codes.Error, "")
	default:
		span.SetAttributes(keyStatus.Int(a.status))
		if a.status >= http.StatusInternalServerError {
			span.SetAttributes(keyErrorType.String(strconv.Itoa(a.status)))
			span.SetStatus(codes.Error, "")
		}
	}
	span.End()
}
