package engine_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// deaf is a store whose first answer is lost.
type deaf struct {
	dedupstore.Store
	claims int
}

func (d *deaf) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, d.claimOne)
}

func (d *deaf) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	a, err := dedupstore.ClaimOne(ctx, d.Store, r)
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
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: "o1"}, MaxWait: 10 * time.Second}
	if _, err := guard.Run(t.Context(), call, func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil }); err != nil {
		t.Fatal(err)
	}
	counted := countedBy(t, reader, "oncemill.outcome")
	for name, want := range map[string]int64{"oncemill.claims claimed": 1, "oncemill.claims reclaimed": 0, "oncemill.lease.takeovers ": 0, "oncemill.claims store_error": 1} {
		if counted[name] != want {
			t.Errorf("%s: %d, want %d", name, counted[name], want)
		}
	}
}

// countedBy returns what each metric counted, by the values of an attribute.
func countedBy(t *testing.T, reader *sdkmetric.ManualReader, by attribute.Key) map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &data); err != nil {
		t.Fatal(err)
	}
	counted := map[string]int64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, p := range sum.DataPoints {
					value, _ := p.Attributes.Value(by)
					counted[m.Name+" "+value.AsString()] += p.Value
				}
			}
		}
	}
	return counted
}

// An outcome that is no success is counted once, when it is stored. It is not counted again when a duplicate gets it,
// when somebody else publishes its dead letter, or when the store is only asked again.
func TestGuard_FailureIsCountedOnceWhenItIsStored(t *testing.T) {
	permanent := failing(oncemill.Permanent(errRefused))
	parks := oncemill.Irreversible()
	spent := func(r *dedupstore.Request) { r.MaxAttempts = 1 }
	// A holder dies in a run that has started.
	dies := func(change ...func(*dedupstore.Request)) func(*testing.T, *faultyStore) {
		return func(t *testing.T, store *faultyStore) {
			claim := abandonedClaim(t, store, "m1", change...)
			if err := dedupstore.ExtendOne(t.Context(), store, dedupstore.Extension{Claim: claim, Lease: 30 * time.Second, Started: true}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(31 * time.Second) // virtual
		}
	}
	deafToSettles := func(_ *testing.T, store *faultyStore) {
		settles := 0
		store.settle = func(_ dedupstore.Settlement, apply func() error) error {
			err := apply()
			if settles++; settles == 1 {
				return errDown
			}
			return err
		}
	}
	for name, tc := range map[string]struct {
		policy  oncemill.Policy
		before  func(*testing.T, *faultyStore)
		handler func(context.Context) (dedupstore.Outcome, error)
		publish func(call int) error // nil: there is no dead letter
		want    string               // "": nothing is counted
	}{
		"a success":                         {handler: failing(nil)},
		"permanent":                         {handler: permanent, want: "permanent"},
		"the attempts are spent":            {policy: oncemill.Policy{MaxAttempts: 1}, handler: failing(errRefused), want: "exhausted"},
		"parked":                            {policy: parks, handler: failing(errRefused), want: "unknown"},
		"the answer to the settle is lost":  {before: deafToSettles, handler: permanent, want: "permanent"},
		"a dead letter, published at last":  {handler: permanent, publish: func(int) error { return nil }, want: "permanent"},
		"a dead letter that fails once":     {handler: permanent, publish: once, want: "permanent"},
		"a dead letter that is not kept":    {policy: oncemill.Policy{MaxProducedBytes: 1}, handler: permanent, publish: func(int) error { return nil }, want: "permanent"},
		"a holder died in its last attempt": {policy: oncemill.Policy{MaxAttempts: 1}, before: dies(spent), handler: failing(nil), want: "exhausted"},
		"a holder died, and nobody reruns":  {policy: parks, before: dies(), handler: failing(nil), want: "unknown"},
		"as before, with a dead letter":     {policy: parks, before: dies(), handler: failing(nil), publish: once, want: "unknown"},
		"the answer to the claim that ended the message is lost": {policy: parks, handler: failing(nil), want: "unknown", before: func(t *testing.T, store *faultyStore) {
			dies()(t, store)
			claims := 0
			store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
				a, err := apply()
				if claims++; claims == 1 {
					return dedupstore.Answer{}, errDown
				}
				return a, err
			}
		}},
		"outputs that cannot be stored": {want: "permanent", handler: func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: ""}}}, nil
		}},
	} {
		for _, kind := range []string{"leased", "inbox"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					records := newStore(t)
					var store dedupstore.Store = records
					if kind == "inbox" {
						store = storetest.NewMemoryInbox(records)
					}
					if tc.before != nil {
						tc.before(t, records)
					}
					reader := sdkmetric.NewManualReader()
					policy := tc.policy
					policy.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
					g := newGuard(t, store, policy)
					c := call("m1")
					c.MaxWait = time.Second
					if tc.publish != nil {
						c.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced {
							return []dedupstore.Produced{{ID: "dead", Topic: "dead", Payload: []byte("more than a byte")}}
						}
						published := 0
						c.Publish = func(context.Context, []dedupstore.Produced) error {
							published++
							return tc.publish(published)
						}
					}
					for range 4 { // redeliveries, and duplicates in the end
						_, _ = g.Run(t.Context(), c, tc.handler)
						time.Sleep(time.Minute) // virtual
					}
					want := map[string]int64{}
					if tc.want != "" {
						want["oncemill.failures "+tc.want] = 1
					}
					counted := countedBy(t, reader, "oncemill.result")
					maps.DeleteFunc(counted, func(name string, _ int64) bool { return !strings.HasPrefix(name, "oncemill.failures ") })
					if !maps.Equal(counted, want) {
						t.Errorf("counted %v, want %v", counted, want)
					}
				})
			})
		}
	}
}

// once fails the first call.
func once(call int) error {
	if call == 1 {
		return errDown
	}
	return nil
}

// A failure that runs again on request, and fails again, is another one.
func TestGuard_RerunThatFailsIsCountedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		g := newGuard(t, newStore(t), oncemill.Policy{Telemetry: oncemill.Telemetry{
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		}})
		runs := 0
		run := func(context.Context) (dedupstore.Outcome, error) {
			runs++
			return dedupstore.Outcome{}, oncemill.Permanent(errRefused)
		}
		res, err := g.Run(t.Context(), call("m1"), run)
		if err != nil {
			t.Fatal(err)
		}
		again := call("m1")
		again.Rerun = res.Fence
		for range 2 { // the second one is a duplicate
			if _, err := g.Run(t.Context(), again, run); err != nil {
				t.Fatal(err)
			}
		}
		if runs != 2 {
			t.Errorf("%d runs, want 2", runs)
		}
		if n := countedBy(t, reader, "oncemill.result")["oncemill.failures permanent"]; n != 2 {
			t.Errorf("%d failures are counted, want 2", n)
		}
	})
}

// closedInbox has transactions that cannot begin.
type closedInbox struct {
	*storetest.MemoryInbox
	closed bool
}

func (i *closedInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if i.closed {
		return nil, errDown
	}
	return i.MemoryInbox.InTx(ctx, runs, work)
}

func TestInbox_TransactionThatCannotBeginIsAStoreErrorAndNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		inbox := &closedInbox{storetest.NewMemoryInbox(newStore(t)), true}
		g := newGuard(t, inbox, oncemill.Policy{
			MaxAttempts: 1, Telemetry: oncemill.Telemetry{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))},
		})
		c := call("m1")
		c.MaxWait = time.Hour // until it is due
		for range 5 {
			if _, err := g.Run(t.Context(), c, failing(oncemill.Permanent(errRefused))); !errors.Is(err, errDown) {
				t.Errorf("the run returned %v", err)
			}
		}
		inbox.closed = false
		if _, err := g.Run(t.Context(), c, failing(nil)); err != nil {
			t.Error(err)
		}
		if n := countedBy(t, reader, "oncemill.store.operation")["oncemill.store.errors begin"]; n != 5 {
			t.Errorf("%d store errors are counted, want 5", n)
		}
	})
}
