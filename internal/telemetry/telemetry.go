// Package telemetry holds every name of a span, attribute and metric that Oncemill emits, each once, and the few calls
// that emit them. It uses the OpenTelemetry API only: without an SDK everything here does nothing, and costs next to
// nothing.
package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Buckets of durations, in seconds.
var (
	claimBuckets   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	messageBuckets = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10} // of the conventions
	delayBuckets   = []float64{.01, .1, 1, 5, 15, 60, 300, 900, 3600, 14400, 43200, 86400, 259200, 604800}
	batchBuckets   = []float64{1, 5, 10, 25, 50, 100, 250, 500, 1000}
)

// Meter counts what the engine does. Its methods are safe for concurrent use.
type Meter struct {
	claims, failures, renewals, takeovers, losses, storeErrors, oversize, shadowed metric.Int64Counter

	claimTime, runTime, delay metric.Float64Histogram

	active metric.Int64UpDownCounter
	oldest metric.Float64ObservableGauge

	meter   metric.Meter
	store   string
	sources sources
}

// NewMeter makes the instruments. The store is what claims are asked of, or nil.
func NewMeter(p Providers, store any) (*Meter, error) {
	m := &Meter{store: storeName(store), meter: p.meter()}
	set := maker{meter: m.meter}
	set.counter(&m.claims, "oncemill.claims", "{claim}",
		"Deliveries by how they were answered. One that was held counts as busy, not due or a store error, too.")
	set.counter(&m.failures, "oncemill.failures", "{failure}",
		"Outcomes that are no success, when they are stored. Duplicates that get one count as claims only.")
	set.counter(&m.renewals, "oncemill.lease.renewals", "{renewal}", "Heartbeats by result.")
	set.counter(&m.takeovers, "oncemill.lease.takeovers", "{takeover}",
		"Claims of a run whose lease had expired: its holder died, or was too slow.")
	set.counter(&m.losses, "oncemill.lease.losses", "{loss}", "Runs that lost their claim to another owner.")
	set.counter(&m.storeErrors, "oncemill.store.errors", "{error}", "Operations of the store that failed.")
	set.counter(&m.oversize, "oncemill.outputs.oversize", "{run}",
		"Runs whose produced messages were too large to be stored.")
	set.counter(&m.shadowed, "oncemill.shadow.claims", "{claim}",
		"Deliveries in shadow mode by how they would have been answered.")
	set.histogram(&m.claimTime, "oncemill.claim.duration", "How long the store took to answer a claim.", claimBuckets)
	set.histogram(&m.runTime, "messaging.process.duration",
		"How long a handler took, once for each run.", messageBuckets)
	set.histogram(&m.delay, "oncemill.duplicate.delay",
		"Time from the first claim of a message to a duplicate: how long the window has to be.", delayBuckets)
	if set.err == nil {
		m.active, set.err = set.meter.Int64UpDownCounter("oncemill.handler.active", metric.WithUnit("{message}"),
			metric.WithDescription("Handlers at work."))
	}
	if set.err == nil {
		m.oldest, set.err = set.meter.Float64ObservableGauge("oncemill.handler.oldest.age", metric.WithUnit("s"),
			metric.WithDescription("How long the longest run has been at work."))
	}
	return m, set.err
}

// A Handler names a handler of a group.
type Handler struct{ Group, Name string }

// Oldest shows how long the longest run of each handler has been at work, until stop is called.
func (m *Meter) Oldest(runs func() map[Handler]time.Duration) (stop func(), err error) {
	registration, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for of, age := range runs() {
			o.ObserveFloat64(m.oldest, age.Seconds(),
				metric.WithAttributes(keyGroup.String(of.Group), keyHandler.String(of.Name)))
		}
		return nil
	}, m.oldest)
	if err != nil {
		return nil, err
	}
	return func() { _ = registration.Unregister() }, nil
}

// A maker makes instruments until one fails.
type maker struct {
	meter metric.Meter
	err   error
}

func (m *maker) counter(c *metric.Int64Counter, name, unit, about string) {
	if m.err == nil {
		*c, m.err = m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(about))
	}
}

// histogram is of seconds.
func (m *maker) histogram(h *metric.Float64Histogram, name, about string, buckets []float64) {
	if m.err == nil {
		*h, m.err = m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(about),
			metric.WithExplicitBucketBoundaries(buckets...))
	}
}

// An Answer is how a delivery was answered.
type Answer struct {
	Outcome Outcome
	Bypass  Detail // of bypassed deliveries: why
	Attempt int    // the run that was granted; 0: none
	Fence   uint64
	Age     time.Duration // of duplicates: since the first claim
	Taken   bool          // the run takes an expired lease over
}

// Claim counts a delivery and says on its span how it was answered: on that of the delivery, or else on the current
// one.
func (m *Meter) Claim(ctx context.Context, group, handler, id string, a *Answer) {
	span := trace.SpanFromContext(ctx)
	recording := span.IsRecording()
	if !recording && !m.claims.Enabled(ctx) {
		return
	}
	d, mine := deliveryOf(ctx, group, handler, id)
	detail := a.Bypass
	if mine && a.Outcome.duplicate() {
		detail = d.cause
	} else if a.Outcome.duplicate() {
		detail = UnknownCause
	}
	if m.claims.Enabled(ctx) {
		source := m.sourceOf(d, mine, group, handler)
		why := keyCause
		if a.Outcome == Bypassed {
			why = keyBypass
		}
		labels := source.with(keyOutcome.String(string(a.Outcome)), why.String(string(detail)))
		m.claims.Add(ctx, 1, labels.add...)
		if a.Outcome.duplicate() {
			m.delay.Record(ctx, a.Age.Seconds(), labels.record...)
		}
		if a.Taken {
			m.takeovers.Add(ctx, 1, source.plain.add...)
		}
	}
	if recording && (mine || d == nil) { // else it is the span of the delivery whose handler asks for something else
		describe(span, a, detail)
	}
}

// Ended counts an outcome that is no success and has been stored.
func (m *Meter) Ended(ctx context.Context, group, handler, id string, e End) {
	d, mine := deliveryOf(ctx, group, handler, id)
	m.failures.Add(ctx, 1, m.sourceOf(d, mine, group, handler).with(keyResult.String(string(e))).add...)
}

func describe(span trace.Span, a *Answer, detail Detail) {
	span.SetAttributes(keyOutcome.String(string(a.Outcome)))
	switch {
	case a.Outcome == Bypassed && detail != NoDetail:
		span.SetAttributes(keyBypass.String(string(detail)))
	case a.Outcome.duplicate():
		span.SetAttributes(keyAge.Float64(a.Age.Seconds()), keyCause.String(string(detail)))
	}
	if a.Attempt > 0 {
		span.SetAttributes(keyAttempt.Int(a.Attempt), keyFence.Int64(int64(a.Fence)))
	}
}

// sourceOf returns the source of a delivery, or that of a guard that is used without one.
func (m *Meter) sourceOf(d *Processing, mine bool, group, handler string) *source {
	if mine {
		return d.source
	}
	return m.sources.of(scope{group: group, handler: handler})
}

// Times reports whether to time claims.
func (m *Meter) Times(ctx context.Context) bool { return m.claimTime.Enabled(ctx) }

// ClaimTook records how long the store took to answer a claim, or to fail.
func (m *Meter) ClaimTook(ctx context.Context, o Outcome, failure string, d time.Duration) {
	m.claimTime.Record(ctx, d.Seconds(), m.sources.of(scope{}).with(keyOutcome.String(string(o)),
		keyStore.String(m.store), keyErrorType.String(failure)).record...)
}

// Shadow counts what would have happened to a delivery.
func (m *Meter) Shadow(ctx context.Context, group, handler string, o Outcome) {
	source := m.sources.of(scope{group: group, handler: handler})
	m.shadowed.Add(ctx, 1, source.with(keyOutcome.String(string(o))).add...)
}

// Renewal counts a heartbeat.
func (m *Meter) Renewal(ctx context.Context, result string) {
	m.renewals.Add(ctx, 1, m.sources.of(scope{}).with(keyResult.String(result)).add...)
}

// Loss counts a run that lost its claim.
func (m *Meter) Loss(ctx context.Context, group, handler string) {
	m.losses.Add(ctx, 1, m.sources.of(scope{group: group, handler: handler}).plain.add...)
}

// Oversize counts a run whose produced messages were too large to be stored.
func (m *Meter) Oversize(ctx context.Context, group, handler string) {
	m.oversize.Add(ctx, 1, m.sources.of(scope{group: group, handler: handler}).plain.add...)
}
