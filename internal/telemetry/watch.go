package telemetry

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

// Stats are what the gauges show.
type Stats struct {
	Pending, Dead int
	Oldest        time.Duration
}

// To count may be a lot of work for the database.
const (
	statsEvery  = 10 * time.Second // at most
	statsRest   = 10               // a count takes at most one part in so many of the time
	statsFresh  = 3                // for so many pauses a count is shown; then it is too old to be true
	statsUnread = 5 * time.Minute  // without anybody who collects nobody counts
)

// Watch counts the rows of an outbox every ten seconds, until ctx ends or the function that it returns is called, which
// waits for the last count. Whoever collects metrics gets what was counted last, and nothing while there is no count, or
// only an old one: collecting waits for no database, and does not fail with one. Errors are OpenTelemetry's to handle.
// Without an SDK nothing is counted.
func (r *Relay) Watch(ctx context.Context, stats func(context.Context) (Stats, error)) (stop func(), err error) {
	w := &watch{name: r.name, taken: r.size.Enabled, stats: stats}
	w.read.Store(time.Now().UnixNano())
	at := watchedAt(r.sender.providers.MeterProvider, r.name, w)
	registration, err := r.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		w.read.Store(time.Now().UnixNano())
		if s, known := watches.most(at); known {
			o.ObserveInt64(r.pending, int64(s.Pending), r.states[0])
			o.ObserveInt64(r.pending, int64(s.Dead), r.states[1])
			o.ObserveFloat64(r.oldest, s.Oldest.Seconds(), r.ages)
		}
		return nil
	}, r.pending, r.oldest)
	if err != nil {
		return nil, err
	}
	watches.add(at, w)
	ctx, cancel := context.WithCancel(ctx)
	var counting sync.WaitGroup
	counting.Go(func() { w.run(ctx) })
	return func() {
		cancel()
		counting.Wait()
		_ = registration.Unregister()
		watches.remove(at, w)
	}, nil
}

// A watch counts the rows of an outbox.
type watch struct {
	name  string
	taken func(context.Context) bool // somebody takes metrics
	stats func(context.Context) (Stats, error)
	read  atomic.Int64            // when metrics were collected last, in nanoseconds since 1970
	last  atomic.Pointer[counted] // nil: there is none
}

// counted are stats until they are too old.
type counted struct {
	Stats
	until time.Time
}

func (w *watch) run(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
		pause := statsEvery
		if w.taken(ctx) && time.Since(time.Unix(0, w.read.Load())) < statsUnread {
			pause = w.count(ctx)
		}
		next.Reset(pause)
	}
}

// count returns how long to wait before the next count.
func (w *watch) count(ctx context.Context) time.Duration {
	began := time.Now()
	s, err := w.stats(ctx)
	pause := max(statsEvery, statsRest*time.Since(began))
	switch {
	case err == nil:
		w.last.Store(&counted{s, time.Now().Add(statsFresh * pause)})
	case ctx.Err() == nil:
		otel.Handle(fmt.Errorf("oncemill: count the rows of outbox %q: %w", w.name, err))
	}
	return pause
}

// watches are those of the process. Of several with one name for one provider, an instrument would keep any one's
// values: all of them show the highest.
var watches = watchSet{byPlace: map[watchPlace][]*watch{}}

type watchSet struct {
	mu      sync.Mutex
	byPlace map[watchPlace][]*watch
}

type watchPlace struct {
	provider any
	name     string
}

func watchedAt(provider metric.MeterProvider, name string, w *watch) watchPlace {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	if !reflect.ValueOf(provider).Comparable() {
		return watchPlace{w, name} // it stands alone
	}
	return watchPlace{provider, name}
}

func (s *watchSet) add(at watchPlace, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPlace[at] = append(s.byPlace[at], w)
}

func (s *watchSet) remove(at watchPlace, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := s.byPlace[at][:0:0]
	for _, other := range s.byPlace[at] {
		if other != w {
			rest = append(rest, other)
		}
	}
	if s.byPlace[at] = rest; len(rest) == 0 {
		delete(s.byPlace, at)
	}
}

// most returns the highest stats of those that are not too old, and whether there are any.
func (s *watchSet) most(at watchPlace) (most Stats, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, w := range s.byPlace[at] {
		if c := w.last.Load(); c != nil && now.Before(c.until) {
			most = Stats{max(most.Pending, c.Pending), max(most.Dead, c.Dead), max(most.Oldest, c.Oldest)}
			known = true
		}
	}
	return most, known
}
