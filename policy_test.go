package oncemill_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

func TestPolicy_BadValuesNameTheirField(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		field  string
		policy oncemill.Policy
	}{
		"negative window":         {"Policy.Window", oncemill.Policy{Window: -1}},
		"window below lease":      {"Policy.Window", oncemill.Policy{Window: time.Second}},
		"endless window":          {"Policy.Window", oncemill.Policy{Window: 1 << 62}},
		"failure window":          {"Policy.FailureWindow", oncemill.Policy{FailureWindow: time.Second}},
		"negative lease":          {"Policy.Lease", oncemill.Policy{Lease: -time.Second}},
		"tiny lease":              {"Policy.Lease", oncemill.Policy{Lease: time.Millisecond}},
		"negative attempts":       {"Policy.MaxAttempts", oncemill.Policy{MaxAttempts: -1}},
		"negative backoff":        {"Policy.Backoff.Min", oncemill.Policy{Backoff: oncemill.Backoff{Min: -1}}},
		"backoff upside down":     {"Policy.Backoff.Max", oncemill.Policy{Backoff: oncemill.Backoff{Min: 2, Max: 1}}},
		"endless backoff":         {"Policy.Backoff.Max", oncemill.Policy{Backoff: oncemill.Backoff{Max: 1 << 62}}},
		"expired lease":           {"Policy.ExpiredLease", oncemill.Policy{ExpiredLease: "forget"}},
		"store down":              {"Policy.StoreDown", oncemill.Policy{StoreDown: "pray"}},
		"mismatch":                {"Policy.Mismatch", oncemill.Policy{Mismatch: "?"}},
		"missing ID":              {"Policy.MissingID", oncemill.Policy{MissingID: "?"}},
		"irreversible, fail open": {"Policy.StoreDown", oncemill.Policy{ExpiredLease: oncemill.Park, StoreDown: oncemill.FailOpen}},
		"result bytes":            {"Policy.MaxResultBytes", oncemill.Policy{MaxResultBytes: -1}},
		"produced bytes":          {"Policy.MaxProducedBytes", oncemill.Policy{MaxProducedBytes: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := oncemill.NewGuard(newStore(t), c.policy)
			if e := as[*dedupstore.InvalidError](t, err); e.Field != c.field {
				t.Errorf("%v, want it to name %s", err, c.field)
			}
		})
	}
	_, err := oncemill.NewGuard(nil, oncemill.Policy{})
	as[*dedupstore.InvalidError](t, err)
}

func TestPolicy_PresetsAreValid(t *testing.T) {
	t.Parallel()
	for window, p := range map[time.Duration]oncemill.Policy{
		24 * time.Hour: {}, 24*time.Hour + 1: oncemill.LowValue(), 168 * time.Hour: oncemill.HighValue(), 720 * time.Hour: oncemill.Irreversible(),
	} {
		if got := newGuard(t, newStore(t), p).Policy(); got.Window != window.Truncate(time.Hour) || got.FailureWindow != got.Window {
			t.Errorf("window %v, failures %v, want %v", got.Window, got.FailureWindow, window)
		}
	}
}

func irreversible(t *testing.T, s dedupstore.Store) *oncemill.Guard {
	return newGuard(t, s, oncemill.Irreversible())
}

func TestIrreversible_CrashedRunIsParkedNotRunAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		claim := abandonedClaim(t, store, "m1")
		if err := dedupstore.ExtendOne(t.Context(), store, dedupstore.Extension{Claim: claim, Lease: 30 * time.Second, Started: true}); err != nil { // the run has started
			t.Fatal(err)
		}
		time.Sleep(31 * time.Second)
		var h counter
		var p publisher
		c := call("m1")
		c.Publish, c.DeadLetter = p.publish, deadLetter
		res, err := irreversible(t, store).Run(t.Context(), c, h.run)
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Fatalf("%+v, %v; want unknown", res, err)
		}
		p.want(t, "dead:unknown")
		h.want(t, 0)
	})
}

func TestIrreversible_ClaimWhoseHandlerNeverStartedRunsAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		abandonedClaim(t, store, "m1")
		time.Sleep(31 * time.Second)
		var h counter
		if _, err := irreversible(t, store).Run(t.Context(), call("m1"), h.run); err != nil {
			t.Fatal(err)
		}
		h.want(t, 1)
	})
}

func TestIrreversible_RunIsMarkedAsStartedBeforeTheHandler(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		if _, err := irreversible(t, store).Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			if store.extended() != 1 {
				t.Errorf("extended %d times before the handler, want once", store.extended())
			}
			return dedupstore.Outcome{}, nil
		}); err != nil {
			t.Fatal(err)
		}
		store.extend = func(func() error) error { return dedupstore.ErrClaimLost }
		var h counter
		_, err := irreversible(t, store).Run(t.Context(), call("m2"), h.run)
		if !errors.Is(err, oncemill.ErrClaimLost) {
			t.Errorf("a mark that was refused: %v, want ErrClaimLost", err)
		}
		h.want(t, 0)
	})
}

func TestIrreversible_OnlyAnErrorWithProofIsTriedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := irreversible(t, newStore(t))
		failing := func(err error) oncemill.RunFunc {
			return func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, err }
		}
		res, err := g.Run(t.Context(), call("m1"), failing(errors.New("timeout")))
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("without proof: %+v, %v; want unknown", res, err)
		}
		_, err = g.Run(t.Context(), call("m2"), failing(oncemill.NoEffect(errors.New("connection refused"))))
		answertest.Want(t, err, oncemill.StatusRetry)
		res, err = g.Run(t.Context(), call("m3"), failing(oncemill.Permanent(errors.New("refused by the bank"))))
		if err != nil || res.Outcome.Kind != dedupstore.Failed {
			t.Errorf("permanent: %+v, %v; want failed", res, err)
		}
		ctx, shutdown := context.WithCancel(t.Context())
		shutdownDuring := func(ctx context.Context) (dedupstore.Outcome, error) {
			shutdown()
			return dedupstore.Outcome{}, ctx.Err()
		}
		res, err = g.Run(ctx, call("m4"), shutdownDuring)
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("interrupted: %+v, %v; want unknown", res, err)
		}
	})
}

func TestIrreversible_UnmarkableRunIsGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(func() error) error { return errDown }
		var h counter
		_, err := irreversible(t, store).Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		store.extend = nil
		synctest.Wait() // for what is under way
		asked := store.extended()
		time.Sleep(time.Hour) // virtual
		if n := store.extended() - asked; n > 0 {
			t.Errorf("the lease of a run that was given back was extended %d times", n)
		}
		res, err := irreversible(t, store).Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Attempt != 1 {
			t.Errorf("%+v, %v; want attempt 1", res, err)
		}
		h.want(t, 1)
	})
}

// A run that cannot be marked because its claim is lost has nothing to give back.
func TestIrreversible_LostRunIsNotGivenBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(func() error) error { return dedupstore.ErrClaimLost }
		var h counter
		_, err := irreversible(t, store).Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusLost)
		h.want(t, 0)
		if len(store.settled) > 0 {
			t.Errorf("it was settled with %+v", store.settled)
		}
	})
}

// Calls that start together claim nothing under their own keys either.
func TestShadow_TouchesNothingOfCallsThatStartTogether(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		h := counter{}
		calls := []oncemill.Call{call("a"), call("b")}
		var done sync.WaitGroup
		done.Add(len(calls))
		newGuard(t, store, oncemill.Policy{Shadow: true}).Start([]context.Context{t.Context(), t.Context()}, calls,
			func(ctx context.Context, _ int) (dedupstore.Outcome, error) { return h.run(ctx) },
			func(int, oncemill.Result, error) { done.Done() })
		done.Wait()
		h.want(t, 2)
		for _, r := range store.claims {
			if r.Key.Handler != "~charge" {
				t.Errorf("it claimed %v", r.Key)
			}
		}
	})
}

func TestShadow_RunsEverythingAndTouchesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		shadow := newGuard(t, store, oncemill.Policy{Shadow: true})
		boom := errors.New("boom")
		h := counter{then: func(_ context.Context, run int) (dedupstore.Outcome, error) {
			if run == 2 {
				return dedupstore.Outcome{}, oncemill.Permanent(boom)
			}
			return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "o"}}}, nil
		}}
		c := call("m1")
		c.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced { t.Error("dead-lettered"); return nil }
		c.Publish = func(context.Context, []dedupstore.Produced) error { t.Error("published"); return nil }
		for run := 1; run <= 4; run++ {
			store.down.Store(run == 4)
			res, err := shadow.Run(t.Context(), c, h.run)
			if run == 2 != errors.Is(err, boom) || !res.Bypassed {
				t.Errorf("run %d: %+v, %v", run, res, err)
			}
		}
		h.want(t, 4)
		store.down.Store(false)
		if res, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), call("m1"), (&counter{}).run); err != nil || res.Duplicate {
			t.Errorf("the real guard knows what the shadow counted: %+v, %v", res, err)
		}
		if len(store.claims) == 0 || store.claims[0].Key.Handler != "~charge" {
			t.Errorf("shadow claimed %v", store.claims)
		}
	})
}
