package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// wantRefused wants a refusal that has found a run.
func wantRefused(t *testing.T, s dedupstore.Store, seen dedupstore.Record) {
	t.Helper()
	err := s.(dedupstore.Inspector).Change(t.Context(), seen, dedupstore.Forget{})
	refused, ok := errors.AsType[*dedupstore.RefusedError](err)
	if !ok || refused.Found.State != dedupstore.Running {
		t.Errorf("forgetting returned %v, want a RefusedError that has found a run", err)
	}
}

func TestInspector_FirstRunIsRunning(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	if seen := recordOf(t, s, "1"); seen.State != dedupstore.Absent {
		t.Errorf("before, its record looks like %+v", seen)
	}
	if _, err := firstOf(t, s.Inbox(), request("1"), func(ctx context.Context, c dedupstore.Claim) error {
		for _, form := range []dedupstore.Store{s, s.Inbox(), s.InboxSQL()} {
			records, err := form.(dedupstore.Inspector).Look(ctx, []dedupstore.Key{request("0").Key, c.Key})
			if err != nil {
				return err
			}
			if records[0].State != dedupstore.Absent || records[1].State != dedupstore.Running ||
				!records[1].Started || records[1].Holder != "a first run" || time.Until(records[1].Until) <= 0 {
				t.Errorf("beside a first run the records look like %+v", records)
			}
			wantRefused(t, form, records[1])
		}
		return effect(ctx, c)
	}); err != nil {
		t.Fatal(err)
	}
	if seen := recordOf(t, s, "1"); seen.State != dedupstore.Finished {
		t.Errorf("after it, its record looks like %+v", seen)
	}
}

// TestChange_RefusedBesideATransactionThatSettles has one that has taken longer than its lease.
func TestChange_RefusedBesideATransactionThatSettles(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	c := claim(t, s, brief("1"), dedupstore.AcquiredRun).Claim
	lasts(2 * c.Lease)
	tx := begin(t, pool, "")
	if err := s.Join(txctx.With(t.Context(), &c), tx); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, s, recordOf(t, s, "1"))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen := recordOf(t, s, "1"); seen.State != dedupstore.Finished {
		t.Errorf("the record looks like %+v", seen)
	}
}

// TestChange_HeartbeatSinceTheLookWins has a lease that was renewed after somebody had seen that it had ended.
func TestChange_HeartbeatSinceTheLookWins(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	c := claim(t, s, brief("1"), dedupstore.AcquiredRun).Claim
	lasts(2 * c.Lease)
	seen := recordOf(t, s, "1")
	if err := beat(t.Context(), s, c, long); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, s, seen)
	if err := dedupstore.SettleOne(t.Context(), s, c, success); err != nil {
		t.Error(err)
	}
}

func TestForget_LeavesNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	c := runOf(t, s, "1")
	d := []dedupstore.Duplicates{{Key: c.Key, Count: 1, Last: time.Now()}}
	if err := errors.Join(beat(t.Context(), s, c, long), dedupstore.SettleOne(t.Context(), s, c, success),
		s.NoteDuplicates(t.Context(), d), s.Change(t.Context(), recordOf(t, s, "1"), dedupstore.Forget{})); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM oncemill_dedup) +
	(SELECT count(*) FROM oncemill_dedup_beats) + (SELECT count(*) FROM oncemill_dedup_duplicates)`,
	).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d rows are left, %v", left, err)
	}
}

// TestChange_BesideLiveClaims changes what others claim, and lose, and settle. A committed run has an effect and an
// outcome. So each key has as many effects as outcomes were taken away from it, and one for the last.
func TestChange_BesideLiveClaims(t *testing.T) {
	t.Parallel()
	const keys = 12
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	ctx := t.Context()
	kinds := []dedupstore.Kind{dedupstore.Succeeded, dedupstore.Failed, dedupstore.Unknown}
	transactor := s.Inbox()
	deliver := func(id string) error {
		r := request(id)
		r.MaxAttempts = 1 << 30
		ask := func() (dedupstore.Answer, error) { return dedupstore.ClaimOne(ctx, transactor, r) }
		switch rand.N(4) {
		case 0:
			ask = func() (dedupstore.Answer, error) { return firstOf(t, transactor, r, effect) }
		case 1, 2:
			r.Lease = rand.N(20*time.Millisecond) + time.Millisecond
		}
		a, err := ask()
		if err != nil || a.Status != dedupstore.AcquiredRun {
			return err
		}
		c := a.Claim
		if r.Lease < long {
			switch rand.N(3) {
			case 0:
				return nil // crashed
			case 1:
				lasts(r.Lease) // nearly
			}
		}
		if rand.N(4) == 0 {
			err = sqlstore.ErrContended
			for errors.Is(err, sqlstore.ErrContended) { // as the engine does
				err = dedupstore.SettleOne(ctx, transactor, c, dedupstore.Release{Reason: "later"})
			}
		} else {
			f := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: kinds[rand.N(len(kinds))]}, Retention: long}
			err = dedupstore.InTxOne(ctx, transactor, c, func(ctx context.Context) (dedupstore.Settlement, error) {
				return f, effect(ctx, c)
			})
		}
		if errors.Is(err, dedupstore.ErrClaimLost) {
			return nil
		}
		return err
	}
	var asked [keys]atomic.Int64 // for another run, although there was an outcome
	var made, refused atomic.Int64
	change := func(i int) error {
		seen := recordOf(t, s, fmt.Sprint(i))
		c := []dedupstore.Change{dedupstore.Forget{}, dedupstore.Rerun{}, dedupstore.Complete{
			Outcome: dedupstore.Outcome{Kind: kinds[rand.N(2)]}}}[rand.N(3)]
		err := s.Change(ctx, seen, c)
		if _, ok := errors.AsType[*dedupstore.RefusedError](err); ok {
			refused.Add(1)
			return nil
		}
		if _, completes := c.(dedupstore.Complete); err == nil && !completes && seen.State == dedupstore.Finished {
			asked[i].Add(1)
		}
		made.Add(1)
		return err
	}
	var changers, workers sync.WaitGroup
	var over atomic.Bool
	for range 6 {
		workers.Go(func() {
			for !over.Load() {
				if err := deliver(fmt.Sprint(rand.N(keys))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		changers.Go(func() {
			for range full(2000, 400) {
				if err := change(rand.N(keys)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	changers.Wait()
	over.Store(true)
	workers.Wait()
	for i := range keys {
		id := fmt.Sprint(i)
		until(t, "an outcome of "+id, func() bool {
			if seen := recordOf(t, s, id); seen.State == dedupstore.Finished {
				return true
			} else if seen.State == dedupstore.Running && time.Until(seen.Until) > time.Minute {
				t.Fatalf("%s is held by nobody: %+v", id, seen)
			}
			if err := deliver(id); err != nil {
				t.Fatal(err)
			}
			return false
		})
		wantEffects(t, pool, id, int(asked[i].Load())+1)
	}
	t.Logf("%d changes made, %d refused", made.Load(), refused.Load())
}
