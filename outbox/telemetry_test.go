package outbox_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
)

// deaths returns how many rows a reader has for dead.
func deaths(t *testing.T, reader *sdkmetric.ManualReader) (n int64) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == "oncemill.outbox.deaths" {
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					n += p.Value
				}
			}
		}
	}
	return n
}

// A death that cannot be recorded is none: the row comes again.
func TestRelay_CountsADeathWhenItIsRecorded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		s := new(fakeStore).write("a", "unreadable")
		s.rows[1].Problem = "its header is no JSON"
		var down atomic.Bool
		down.Store(true)
		s.onSettle = func(apply func()) error {
			if down.Load() {
				return errDown
			}
			apply()
			return nil
		}
		r := newRelay(t, s, &broker{answer: refuse(false, "a")}, outbox.Config{
			MaxAttempts: 1, PublishTimeout: 100 * time.Millisecond, Lease: 300 * time.Millisecond,
			Telemetry: oncemill.Telemetry{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
		})
		stop := start(t, r)
		after(t, 10*time.Second)
		if n := deaths(t, reader); n != 0 {
			t.Errorf("%d deaths while none could be recorded", n)
		}
		down.Store(false)
		after(t, 10*time.Second)
		stop()
		if n := deaths(t, reader); n != 2 || s.row(t, "a").state != "dead" || s.row(t, "unreadable").state != "dead" {
			t.Errorf("%d deaths, of rows that are %s and %s; want 2", n, s.row(t, "a").state, s.row(t, "unreadable").state)
		}
	})
}

// inspected answers slowly.
type inspected struct {
	*fakeStore
	outbox.Inspector
}

func (inspected) Stats(ctx context.Context) (outbox.Stats, error) {
	<-ctx.Done()
	return outbox.Stats{}, ctx.Err()
}

func TestRelay_ACountThatHangsDoesNotHoldUpItsStop(t *testing.T) {
	virtual(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		r := newRelay(t, inspected{fakeStore: new(fakeStore)}, &broker{}, outbox.Config{
			Telemetry: oncemill.Telemetry{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
		})
		stop := start(t, r)
		after(t, time.Second)
		began := time.Now()
		deaths(t, reader)
		stop()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("collecting and stopping took %v", took)
		}
	})
}
