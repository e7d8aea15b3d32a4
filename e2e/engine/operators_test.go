package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// TestOperators_BesideLiveClaims lets operators forget, rerun and complete records at random, while deliveries of the
// same keys run. No message runs again without a change that lets it, and each such change makes it run once more. It
// makes 500 changes in each store, and 10,000 with ONCEMILL_PROOF=1.
func TestOperators_BesideLiveClaims(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) dedupstore.Inspector{
		"memory": func(t *testing.T) dedupstore.Inspector {
			m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
			if err != nil {
				t.Fatal(err)
			}
			return m
		},
		"redis": func(t *testing.T) dedupstore.Inspector {
			s, err := redisstore.New(redistest.Start(t).Client(), redisstore.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"postgres": func(t *testing.T) dedupstore.Inspector {
			s, err := pgstore.New(postgrestest.Shared(t).NewDatabase(t).Pool(t), pgstore.Config{})
			if err == nil {
				err = s.Migrate(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"sqlite": func(t *testing.T) dedupstore.Inspector {
			db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			s, err := sqlitestore.New(db, sqlitestore.Config{})
			if err == nil {
				err = s.Migrate(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changes := 500
			if os.Getenv("ONCEMILL_PROOF") == "1" {
				changes = 10_000
			}
			meddle(t, open(t), changes)
		})
	}
}

// A meddled key has deliveries and operators at it.
type meddled struct {
	t     *testing.T
	store dedupstore.Inspector
	guard *oncemill.Guard
	key   dedupstore.Key

	mu      sync.Mutex
	running bool
	final   bool            // its last run has decided the outcome
	kind    dedupstore.Kind // of that
	again   int             // runs that followed a decided outcome
	undone  int             // changes that let it run again after one
	pending int             // such changes that are under way
}

var errBank = errors.New("bank: no answer")

// meddle makes so many changes while deliveries run.
func meddle(t *testing.T, store dedupstore.Inspector, changes int) {
	quick := oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	retakes := newGuard(t, store, oncemill.Policy{MaxAttempts: 1 << 20, Backoff: quick})
	parks := oncemill.Irreversible()
	parks.Backoff, parks.MaxAttempts = quick, 1<<20
	atMostOnce := newGuard(t, store, parks)
	var keys []*meddled
	for i := range 40 {
		k := &meddled{t: t, store: store, guard: retakes, key: call(fmt.Sprint(i)).Key}
		if i%2 == 1 {
			k.guard, k.key.Handler = atMostOnce, "wire"
		}
		keys = append(keys, k)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var made, accepted [3]atomic.Int64
	var tried atomic.Int64
	var deliveries, operators sync.WaitGroup
	for range 4 {
		deliveries.Go(func() {
			for ctx.Err() == nil {
				keys[rand.N(len(keys))].deliver(t.Context(), 0)
				runtime.Gosched()
			}
		})
		operators.Go(func() {
			for tried.Load() < int64(changes) && !t.Failed() {
				what := rand.N(3)
				done, ok := keys[rand.N(len(keys))].operate(t.Context(), what)
				if done {
					tried.Add(1)
					made[what].Add(1)
				}
				if ok {
					accepted[what].Add(1)
				}
				runtime.Gosched()
			}
		})
	}
	operators.Wait()
	stop()
	deliveries.Wait()
	for i, what := range []string{"forget", "rerun", "complete"} {
		t.Logf("%s: %d, of which %d were accepted", what, made[i].Load(), accepted[i].Load())
		if accepted[i].Load() == 0 {
			t.Errorf("no %s was accepted", what)
		}
	}
	for _, k := range keys {
		k.settled()
	}
}

// deliver delivers the message once, and reports whether it has an outcome then.
func (k *meddled) deliver(ctx context.Context, wait time.Duration) bool {
	_, err := k.guard.Run(ctx, oncemill.Call{Key: k.key, MaxWait: wait}, k.run)
	answer, _ := errors.AsType[*oncemill.Error](err)
	switch {
	case err == nil:
		return true
	case answer == nil:
		k.t.Errorf("%s: %v", k.key, err)
		return false
	}
	switch answer.Status {
	case oncemill.StatusDone:
		return true
	case oncemill.StatusBusy, oncemill.StatusNotDue, oncemill.StatusRetry:
	default:
		k.t.Errorf("%s: %v", k.key, err)
	}
	return false
}

// run is the handler.
func (k *meddled) run(ctx context.Context) (o dedupstore.Outcome, err error) {
	k.mu.Lock()
	if k.running {
		k.t.Errorf("%s: two runs at once", k.key)
	}
	k.running = true
	if k.final {
		if k.again++; k.again > k.undone+k.pending {
			k.t.Errorf("%s: ran again %d times, and %d changes allowed it", k.key, k.again, k.undone+k.pending)
		}
	}
	k.final = false
	k.mu.Unlock()
	if rand.N(4) == 0 {
		k.refused(ctx)
	}
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.running, k.final = false, k.kind != ""
	}()
	k.kind = ""
	switch n := rand.N(10); {
	case n < 3:
		k.kind = dedupstore.Succeeded
		return o, nil
	case n < 6:
		k.kind = dedupstore.Failed
		return o, oncemill.Permanent(errRefused)
	case n < 9 && k.key.Handler == "wire":
		k.kind = dedupstore.Unknown
		return o, errBank
	}
	return o, oncemill.NoEffect(errBank)
}

// refused makes changes under the run's own claim, each of which must be refused.
func (k *meddled) refused(ctx context.Context) {
	seen, err := k.store.Look(ctx, []dedupstore.Key{k.key})
	if err != nil || seen[0].State != dedupstore.Running {
		k.t.Errorf("%s: a running record is %v, %v", k.key, seen, err)
		return
	}
	for what := range 3 {
		var refused *dedupstore.RefusedError
		if err := k.store.Change(ctx, seen[0], change(what)); !errors.As(err, &refused) {
			k.t.Errorf("%s: a change under a running handler returned %v", k.key, err)
		}
	}
}

func change(what int) dedupstore.Change {
	return []dedupstore.Change{
		dedupstore.Forget{}, dedupstore.Rerun{},
		dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("by hand")}},
	}[what]
}

// operate makes a change, and reports whether it was tried and accepted. What has no record is not tried.
func (k *meddled) operate(ctx context.Context, what int) (tried, accepted bool) {
	looked, err := k.store.Look(ctx, []dedupstore.Key{k.key})
	if err != nil {
		k.t.Errorf("%s: %v", k.key, err)
		return false, false
	}
	seen := looked[0]
	if seen.State == dedupstore.Absent {
		return false, false
	}
	undoes := what < 2 && seen.State == dedupstore.Finished
	k.mu.Lock()
	if undoes {
		k.pending++
	}
	k.mu.Unlock()
	err = k.store.Change(ctx, seen, change(what))
	k.mu.Lock()
	defer k.mu.Unlock()
	if undoes {
		k.pending--
	}
	var refused *dedupstore.RefusedError
	switch {
	case errors.As(err, &refused):
		return true, false
	case err != nil:
		k.t.Errorf("%s: %v", k.key, err)
		return true, false
	case what == 1 && seen.Outcome.Kind == dedupstore.Succeeded:
		k.t.Errorf("%s: a success is to run again", k.key)
	case what == 2 && seen.Outcome.Kind != dedupstore.Unknown:
		k.t.Errorf("%s: an outcome that is %q was completed", k.key, seen.Outcome.Kind)
	}
	if undoes {
		k.undone++
	}
	return true, true
}

// settled wants the message to end, to have run once more for each change that let it, and to have the outcome of its
// last run, unless an operator completed it.
func (k *meddled) settled() {
	for !k.t.Failed() && !k.deliver(k.t.Context(), 10*time.Second) {
	}
	looked, err := k.store.Look(k.t.Context(), []dedupstore.Key{k.key})
	if err != nil {
		k.t.Error(err)
		return
	}
	r := looked[0]
	byHand := k.kind == dedupstore.Unknown && string(r.Outcome.Result) == "by hand"
	if r.State != dedupstore.Finished || r.Outcome.Kind != k.kind && !byHand {
		k.t.Errorf("%s: it is %s %s at the end, want %s", k.key, r.State, r.Outcome.Kind, k.kind)
	}
	if k.again != k.undone {
		k.t.Errorf("%s: it ran again %d times, want %d, once for each change that let it", k.key, k.again, k.undone)
	}
}
