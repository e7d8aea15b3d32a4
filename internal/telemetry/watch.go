package telemetry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

// Stats are what the gauges show.
type Stats struct {
	Pending int
	Oldest  time.Duration
	Dead    int
}

// To count may be a lot of work for the database.
const (
	statsEvery = 10 * time.Second // at most
	statsRest  = 10               // a count takes at most one part in so many of the time
	statsFresh = 3                // for so many pauses a count is shown; then it is too old to be true
)

// counted are stats until they are too old.
type counted struct {
	Stats
	until time.Time
}

// Watch counts the rows of an outbox every ten seconds, until ctx ends or its caller calls stop, which waits for the
// last count. A collector of metrics gets the last count, and nothing if there is none or only an old one. So
// collecting never waits for a database, and does not fail with one. Errors are OpenTelemetry's to handle. Without an
// SDK nothing is counted. Of several outboxes with one name, the gauges show any one's numbers.
func (r *Relay) Watch(ctx context.Context, stats func(context.Context) (Stats, error)) (stop func(), err error) {
	var last atomic.Pointer[counted] // nil: there is none
	registration, err := r.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if c := last.Load(); c != nil && time.Now().Before(c.until) {
			name := keyTable.String(r.name)
			o.ObserveInt64(r.pending, int64(c.Pending), metric.WithAttributes(name, keyRowState.String("pending")))
			o.ObserveInt64(r.pending, int64(c.Dead), metric.WithAttributes(name, keyRowState.String("dead")))
			o.ObserveFloat64(r.oldest, c.Oldest.Seconds(), metric.WithAttributes(name))
		}
		return nil
	}, r.pending, r.oldest)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var counting sync.WaitGroup
	counting.Go(func() {
		for pause := time.Duration(0); ; {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			pause = r.watch(ctx, stats, &last)
		}
	})
	return func() {
		cancel()
		counting.Wait()
		_ = registration.Unregister()
	}, nil
}

// watch counts if somebody takes metrics, and returns how long to wait before the next count.
func (r *Relay) watch(
	ctx context.Context, stats func(context.Context) (Stats, error), last *atomic.Pointer[counted],
) (pause time.Duration) {
	if !r.size.Enabled(ctx) {
		return statsEvery
	}
	began := time.Now()
	s, err := stats(ctx)
	pause = max(statsEvery, statsRest*time.Since(began))
	switch {
	case err == nil:
		last.Store(&counted{s, time.Now().Add(statsFresh * pause)})
	case ctx.Err() == nil:
		otel.Handle(fmt.Errorf("oncemill: count the rows of outbox %q: %w", r.name, err))
	}
	return pause
}
