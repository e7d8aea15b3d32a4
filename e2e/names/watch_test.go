package names_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// counting is an outbox that can be down, or hang.
type counting struct {
	telemetry.Stats
	asked atomic.Int64
	down  atomic.Bool
	hangs chan struct{} // closed: it does not any more; nil: it never does
}

var errDatabase = errors.New("the database is down")

func (c *counting) stats(ctx context.Context) (telemetry.Stats, error) {
	c.asked.Add(1)
	if c.hangs != nil {
		select {
		case <-c.hangs:
		case <-ctx.Done():
			return telemetry.Stats{}, ctx.Err()
		}
	}
	if c.down.Load() {
		return telemetry.Stats{}, errDatabase
	}
	return c.Stats, nil
}

// watch shows an outbox by a relay of its own.
func (b *bench) watch(t testing.TB, ctx context.Context, name string, c *counting) (stop func()) {
	t.Helper()
	relay, err := telemetry.NewRelay(b.Providers, name, "nats")
	if err != nil {
		t.Fatal(err)
	}
	stop, err = relay.Watch(ctx, c.stats)
	if err != nil {
		t.Fatal(err)
	}
	return stop
}

func (b *bench) rows(t testing.TB) map[string]int64 {
	t.Helper()
	return b.points(t, "oncemill.outbox.pending", "oncemill.outbox.state")
}

func TestWatch_CountsRarelyAndShowsRowsUntilItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		box := &counting{Stats: telemetry.Stats{Pending: 7, Dead: 2, Oldest: time.Minute}}
		stop := b.watch(t, t.Context(), "outbox", box)
		synctest.Wait()
		for range 3 {
			if got := b.rows(t); got["pending"] != 7 || got["dead"] != 2 {
				t.Errorf("rows: %v", got)
			}
		}
		if n := box.asked.Load(); n != 1 {
			t.Errorf("the outbox was asked %d times in a moment, want once", n)
		}
		<-time.After(time.Minute + time.Second)
		if n := box.asked.Load(); n != 7 {
			t.Errorf("the outbox was asked %d times in a minute, want 7", n)
		}
		stop()
		if got := b.rows(t); len(got) != 0 {
			t.Errorf("rows after the end: %v", got)
		}
	})
}

// Nobody's metrics end because a database is down, or wait for it.
func TestWatch_ADatabaseThatIsDownHoldsUpNobodysMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		users, err := b.MeterProvider.Meter("user").Int64Counter("payments")
		if err != nil {
			t.Fatal(err)
		}
		users.Add(t.Context(), 1)
		box := &counting{Stats: telemetry.Stats{Pending: 7}}
		defer b.watch(t, t.Context(), "outbox", box)()
		synctest.Wait()
		box.down.Store(true)
		<-time.After(15 * time.Second)
		if got := b.rows(t); got["pending"] != 7 {
			t.Errorf("rows shortly after a count: %v, want what was known last", got)
		}
		<-time.After(time.Minute)
		if asked := box.asked.Load(); asked > 9 {
			t.Errorf("a database that is down was asked %d times in 75 s", asked)
		}
		before := time.Now()
		if got := b.rows(t); len(got) != 0 { // fails if collecting does
			t.Errorf("rows a minute after the last count: %v, want none", got)
		}
		if got := b.points(t, "payments", ""); got[""] != 1 {
			t.Errorf("the user's metrics: %v", got)
		}
		if took := time.Since(before); took != 0 {
			t.Errorf("collecting took %v", took)
		}
		box.down.Store(false)
		<-time.After(11 * time.Second)
		if got := b.rows(t); got["pending"] != 7 {
			t.Errorf("rows after the outage: %v", got)
		}
	})
}

func TestWatch_ACountThatHangsHoldsUpNeitherCollectorsNorTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		box := &counting{hangs: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		stop := b.watch(t, ctx, "outbox", box)
		synctest.Wait()
		began := time.Now()
		if got := b.rows(t); len(got) != 0 {
			t.Errorf("rows before the first count: %v", got)
		}
		cancel()
		stop()
		if took := time.Since(began); took != 0 || box.asked.Load() != 1 {
			t.Errorf("the end took %v, after %d counts", took, box.asked.Load())
		}
	})
}

func TestWatch_AsksNothingWithoutAnSDK(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		without := &counting{}
		defer (&bench{}).watch(t, t.Context(), "outbox", without)()
		<-time.After(time.Hour)
		if n := without.asked.Load(); n != 0 && !globalsAreSet {
			t.Errorf("asked %d times without an SDK", n)
		}
	})
}

func TestWatch_OutboxesOfOtherNamesAndProvidersAreToldApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		stop := b.watch(t, t.Context(), "outbox", &counting{Stats: telemetry.Stats{Pending: 100_000, Dead: 3}})
		defer b.watch(t, t.Context(), "another", &counting{Stats: telemetry.Stats{Pending: 5}})()
		other := newBench()
		defer other.watch(t, t.Context(), "outbox", &counting{Stats: telemetry.Stats{Pending: 1}})()
		synctest.Wait()
		got := b.points(t, "oncemill.outbox.pending", "oncemill.outbox.table")
		if got["outbox"] != 100_000 && got["outbox"] != 3 || got["another"] != 5 && got["another"] != 0 || len(got) != 2 {
			t.Errorf("rows by outbox: %v", got)
		}
		if got := b.points(t, "oncemill.outbox.pending", "oncemill.outbox.state"); len(got) != 2 {
			t.Errorf("rows by state: %v", got)
		}
		if got := other.rows(t); got["pending"] != 1 || got["dead"] != 0 {
			t.Errorf("rows by another provider: %v", got)
		}
		stop()
		if got := b.points(t, "oncemill.outbox.pending", "oncemill.outbox.table"); len(got) != 1 {
			t.Errorf("rows when one has ended: %v", got)
		}
	})
}

// exports counts what a periodic reader exports.
type exports struct {
	sdkmetric.Exporter
	n atomic.Int64
}

func (e *exports) Temporality(k sdkmetric.InstrumentKind) metricdata.Temporality {
	return sdkmetric.DefaultTemporalitySelector(k)
}

func (e *exports) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func (e *exports) Export(context.Context, *metricdata.ResourceMetrics) error { e.n.Add(1); return nil }
func (e *exports) ForceFlush(context.Context) error                          { return nil }
func (e *exports) Shutdown(context.Context) error                            { return nil }

// The SDK's periodic reader exports nothing at all when a callback fails.
func TestWatch_ADatabaseThatIsDownStopsNoExport(t *testing.T) {
	t.Parallel()
	e := &exports{}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(e, sdkmetric.WithInterval(time.Hour))))
	defer func() { _ = provider.Shutdown(context.Background()) }()
	users, err := provider.Meter("user").Int64Counter("payments")
	if err != nil {
		t.Fatal(err)
	}
	users.Add(t.Context(), 1)
	box := &counting{}
	box.down.Store(true)
	defer (&bench{Providers: telemetry.Providers{MeterProvider: provider}}).watch(t, t.Context(), "outbox", box)()
	for range 5 {
		if err := provider.ForceFlush(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := e.n.Load(); n != 5 {
		t.Errorf("%d exports, want 5", n)
	}
}

func init() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) } // the tests' databases are down on purpose
