// Package telemetry holds every name of a span, attribute and metric that Oncemill emits, each once, and the few calls
// that emit them. It uses the OpenTelemetry API only: without an SDK everything here does nothing.
package telemetry

import (
	"context"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the instrumentation scope of all telemetry.
const Scope = "github.com/oncemill/oncemill"

// Attribute keys.
const (
	keyOutcome   = attribute.Key("oncemill.outcome")
	keyAttempt   = attribute.Key("oncemill.attempt")
	keyFence     = attribute.Key("oncemill.fence")
	keyResult    = attribute.Key("oncemill.result")
	keyOperation = attribute.Key("oncemill.store.operation")
	keyPolicy    = attribute.Key("oncemill.store.policy")
	keyLinkType  = attribute.Key("oncemill.link.type")
	keyGroup     = attribute.Key("messaging.consumer.group.name")
	keyHandler   = attribute.Key("oncemill.handler")
)

// Outcome says how a delivery was answered. The set is closed.
type Outcome string

// The outcomes of deliveries.
const (
	Claimed             Outcome = "claimed"               // the first run
	Reclaimed           Outcome = "reclaimed"             // a later run: an attempt failed, or a lease expired
	PublishOnly         Outcome = "publish_only"          // the outcome was known, its messages had to be published
	DuplicateCompleted  Outcome = "duplicate_completed"   // a success was replayed
	DuplicateFailed     Outcome = "duplicate_failed"      // a failure was replayed
	DuplicateUnknown    Outcome = "duplicate_unknown"     // a parked outcome was replayed
	DuplicateInProgress Outcome = "duplicate_in_progress" // another owner is at it
	NotDue              Outcome = "not_due"               // a retry that came too early
	FingerprintMismatch Outcome = "fingerprint_mismatch"  // same ID, other content
	StoreError          Outcome = "store_error"           // the store did not answer, and the handler did not run
	Bypassed            Outcome = "bypassed"              // the handler ran unguarded, as the policy says
)

// Meter counts what the engine does. Its methods are safe for concurrent use.
type Meter struct {
	claims, renewals, storeErrors, oversize, shadowed metric.Int64Counter

	claimed labels
}

// NewMeter makes the instruments with the global meter provider.
func NewMeter() (*Meter, error) {
	m := otel.Meter(Scope)
	var meter Meter
	for _, c := range [...]struct {
		counter           *metric.Int64Counter
		name, unit, about string
	}{
		{&meter.claims, "oncemill.claims", "{claim}", "Deliveries by how they were answered. One that was held counts as busy or not due, too."},
		{&meter.renewals, "oncemill.lease.renewals", "{renewal}", "Heartbeats by result."},
		{&meter.storeErrors, "oncemill.store.errors", "{error}", "Operations of the store that failed."},
		{&meter.oversize, "oncemill.outputs.oversize", "{run}", "Runs whose produced messages were too large to be stored."},
		{&meter.shadowed, "oncemill.shadow.claims", "{claim}", "Deliveries in shadow mode by how they would have been answered."},
	} {
		var err error
		if *c.counter, err = m.Int64Counter(c.name, metric.WithUnit(c.unit), metric.WithDescription(c.about)); err != nil {
			return nil, err
		}
	}
	return &meter, nil
}

// Claim counts a delivery and says on the current span how it was answered.
func (m *Meter) Claim(ctx context.Context, group, handler string, o Outcome, attempt int, fence uint64) {
	if m.claims.Enabled(ctx) {
		m.claims.Add(ctx, 1, m.claimed.of(label{o, group, handler})...)
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(keyOutcome.String(string(o)))
		if attempt > 0 {
			span.SetAttributes(keyAttempt.Int(attempt), keyFence.Int64(int64(fence)))
		}
	}
}

// Labels keeps the attributes of measurements that are made for every message: to make them costs more than the rest of
// the measurement.
type labels struct {
	mu    sync.RWMutex
	known map[label][]metric.AddOption
}

type label struct {
	outcome        Outcome
	group, handler string
}

// maxLabels bounds what is kept. Metrics with more would be of no use.
const maxLabels = 1000

func (l *labels) of(name label) []metric.AddOption {
	l.mu.RLock()
	found, ok := l.known[name]
	l.mu.RUnlock()
	if ok {
		return found
	}
	made := []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(
		keyOutcome.String(string(name.outcome)), keyGroup.String(name.group), keyHandler.String(name.handler)))}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[label][]metric.AddOption{}
	}
	if len(l.known) < maxLabels {
		name.group, name.handler = strings.Clone(name.group), strings.Clone(name.handler) // pieces of a message, perhaps
		l.known[name] = made
	}
	return made
}

// Shadow counts what would have happened to a delivery.
func (m *Meter) Shadow(ctx context.Context, group, handler string, o Outcome) {
	m.shadowed.Add(ctx, 1, metric.WithAttributes(keyOutcome.String(string(o)), keyGroup.String(group), keyHandler.String(handler)))
}

// Results of a heartbeat.
const (
	RenewalOK    = "ok"
	RenewalLost  = "lost"
	RenewalError = "error"
)

// Renewal counts a heartbeat.
func (m *Meter) Renewal(ctx context.Context, result string) {
	m.renewals.Add(ctx, 1, metric.WithAttributes(keyResult.String(result)))
}

// StoreError counts a failed operation of the store.
func (m *Meter) StoreError(ctx context.Context, operation, policy string) {
	m.storeErrors.Add(ctx, 1, metric.WithAttributes(keyOperation.String(operation), keyPolicy.String(policy)))
}

// Oversize counts a run whose produced messages were too large to be stored.
func (m *Meter) Oversize(ctx context.Context, group, handler string) {
	m.oversize.Add(ctx, 1, metric.WithAttributes(keyGroup.String(group), keyHandler.String(handler)))
}

// A CacheMeter counts what a store's local cache does. Its methods are safe for concurrent use.
type CacheMeter struct{ hits metric.Int64Counter }

// NewCacheMeter makes the instrument with the global meter provider.
func NewCacheMeter() (*CacheMeter, error) {
	hits, err := otel.Meter(Scope).Int64Counter("oncemill.cache.hits", metric.WithUnit("{claim}"),
		metric.WithDescription("Claims that were answered by a local cache of finished outcomes."))
	return &CacheMeter{hits}, err
}

// Hit counts a claim that the cache has answered.
func (m *CacheMeter) Hit(ctx context.Context) { m.hits.Add(ctx, 1) }

// Traceparent is the W3C traceparent of the current span, or "" without one.
func Traceparent(ctx context.Context) string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// Inject writes the trace context of ctx into a message's header with the global propagator, unless the header has
// some already, in any case: who stamped first is the message's origin. Baggage alone is no trace context.
func Inject(ctx context.Context, header map[string]string) {
	propagator := otel.GetTextMapPropagator()
	for _, field := range propagator.Fields() {
		for name := range header {
			if strings.EqualFold(name, field) && !strings.EqualFold(name, "baggage") {
				return
			}
		}
	}
	propagator.Inject(ctx, propagation.MapCarrier(header))
}

// LinkOriginal links the current span to the run that did the work, by the traceparent that the record keeps.
func LinkOriginal(ctx context.Context, traceparent string) {
	if traceparent == "" {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	origin := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	if sc := trace.SpanContextFromContext(origin); sc.IsValid() {
		span.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{keyLinkType.String("original_attempt")}})
	}
}
