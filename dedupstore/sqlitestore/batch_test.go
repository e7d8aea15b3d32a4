package sqlitestore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestGate_ShortOnesGoBeforeThoseInLineButOnlyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		var order []string
		enter := func(name string, enter func(context.Context) error, then func()) {
			go func() {
				if err := enter(t.Context()); err != nil {
					t.Error(err)
				}
				order = append(order, name)
				then()
				g.leave()
			}()
			synctest.Wait()
		}
		release := make(chan struct{})
		keep := func() { <-release }
		enter("handler 1", g.enterLast, keep)
		enter("handler 2", g.enterLast, func() {})
		enter("handler 3", g.enterLast, func() {})
		enter("short", g.enter, keep)
		release <- struct{}{}
		synctest.Wait()
		enter("late", g.enter, func() {}) // handler 2 has let another go first already
		release <- struct{}{}
		synctest.Wait()
		if want := []string{"handler 1", "short", "handler 2", "late", "handler 3"}; !slices.Equal(order, want) {
			t.Errorf("the order is %q, want %q", order, want)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		enter("holder", g.enter, keep)
		for _, enter := range []func(context.Context) error{g.enter, g.enterLast} {
			if err := enter(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("with an ended context: %v", err)
			}
		}
		release <- struct{}{}
	})
}

// TestStore_OneOperationThatDoesNotFitHarmsNoOther has the database refuse the transaction that all share.
func TestStore_OneOperationThatDoesNotFitHarmsNoOther(t *testing.T) {
	t.Parallel()
	roomy, db := newStore(t)
	pages := count(t, db, "PRAGMA page_count")
	s, err := New(openAt(t, fileOf(t, db), "_pragma", "max_page_count("+itoa(pages+4)+")"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	settlings := make([]dedupstore.Settling, 4)
	for i := range settlings {
		c := claim(t, s, request(itoa(i)), dedupstore.AcquiredRun).Claim
		settlings[i] = dedupstore.Settling{Claim: c, Settlement: succeeded}
	}
	large := succeeded
	large.Outcome.Result = make([]byte, 1<<20)
	settlings[1].Settlement = large
	settlings[2].Claim.Fence++
	errs := s.Settle(t.Context(), settlings)
	if errs[0] != nil || !errors.Is(errs[1], dedupstore.ErrFull) || !errors.Is(errs[2], dedupstore.ErrClaimLost) ||
		errs[3] != nil {
		t.Errorf("the settlements returned %v, want ErrFull for the second, ErrClaimLost for the third", errs)
	}
	for i, want := range []dedupstore.Status{dedupstore.Done, dedupstore.Busy, dedupstore.Busy, dedupstore.Done} {
		claim(t, roomy, request(itoa(i)), want)
	}
}

func TestStore_RefusalsInABatchDoNotWaitForTheWriteLock(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	c := claim(t, s, request("done"), dedupstore.AcquiredRun).Claim
	if err := dedupstore.SettleOne(t.Context(), s, c, succeeded); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("busy"), dedupstore.AcquiredRun)
	tx := begin(t.Context(), t, openAt(t, fileOf(t, db)))
	requests := []dedupstore.Request{request("done"), request("busy")}
	for i, r := range s.Claim(t.Context(), requests) {
		if want := dedupstore.Status(requests[i].Key.ID); r.Err != nil || r.Answer.Status != want {
			t.Errorf("%q beside a transaction: %q, %v", want, r.Answer.Status, r.Err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		eventually(t, "a claim that waits for the lock", func() bool { return len(s.gate.turn) > 0 })
		cancel()
	}()
	r := s.Claim(ctx, append(requests, request("fresh")))
	if r[0].Err != nil || r[1].Err != nil || !errors.Is(r[2].Err, context.Canceled) {
		t.Errorf("refusals beside a claim that waits in vain: %v, %v, %v", r[0].Err, r[1].Err, r[2].Err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("fresh"), dedupstore.AcquiredRun)
}

// TestInbox_AHeartbeatThatCouldNotWaitFollows looks at the record after a run that failed.
func TestInbox_AHeartbeatThatCouldNotWaitFollows(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	failure := errors.New("card refused")
	err := dedupstore.InTxOne(t.Context(), s.Inbox(), c, func(context.Context) (dedupstore.Settlement, error) {
		x := beat(c)
		x.Lease = 24 * time.Hour
		if err := dedupstore.ExtendOne(t.Context(), s, x); err != nil {
			t.Errorf("the heartbeat returned %v", err)
		}
		return nil, failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("the run returned %v, want the handler's error", err)
	}
	eventually(t, "the lease is extended", func() bool {
		seen := look(t, s, "1")
		return seen.Started && time.Until(seen.Until) > time.Hour
	})
}
