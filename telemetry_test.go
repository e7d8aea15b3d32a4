package oncemill_test

import (
	"context"
	"errors"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// deaf is a store whose first answer is lost.
type deaf struct {
	dedupstore.Store
	claims int
}

func (d *deaf) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	a, err := d.Store.Claim(ctx, r)
	if d.claims++; d.claims == 1 && err == nil {
		return dedupstore.Answer{}, errors.New("the answer is lost")
	}
	return a, err
}

// An owner that asks again for a run that it was granted has claimed it, and has taken nothing over.
func TestGuard_ARepeatedClaimIsNoTakeover(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	reader := sdkmetric.NewManualReader()
	guard, err := oncemill.NewGuard(&deaf{Store: store}, oncemill.Policy{
		Telemetry: oncemill.Telemetry{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
	})
	if err != nil {
		t.Fatal(err)
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "o1"}, Hold: 10 * time.Second}
	if _, err := guard.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil }); err != nil {
		t.Fatal(err)
	}
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	counted := map[string]int64{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			for _, p := range sum.DataPoints {
				outcome, _ := p.Attributes.Value("oncemill.outcome")
				counted[m.Name+" "+outcome.AsString()] += p.Value
			}
		}
	}
	for name, want := range map[string]int64{"oncemill.claims claimed": 1, "oncemill.claims reclaimed": 0, "oncemill.lease.takeovers ": 0, "oncemill.claims store_error": 1} {
		if counted[name] != want {
			t.Errorf("%s: %d, want %d", name, counted[name], want)
		}
	}
}
