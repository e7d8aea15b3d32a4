package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// A batchInbox fails transactions of several runs.
type batchInbox struct {
	*inboxRig
	batches int
	fails   func() error // after the work; nil: none fails
}

func (b *batchInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	if len(runs) > 1 {
		b.batches++
	}
	if len(runs) == 1 || b.fails == nil {
		return b.inboxRig.InTx(ctx, runs, work)
	}
	claims, err := dedupstore.ClaimsOf(runs)
	if err == nil {
		_, err = work(ctx, claims)
	}
	return nil, errors.Join(b.fails(), err)
}

// batchOverInbox runs calls of "a", "b" and "c" together, which have an effect each. It returns how they ran and ended.
func batchOverInbox(
	t *testing.T, inbox *batchInbox, policy oncemill.Policy, errs func(run int) []error,
) (ran [][]int, ends []oncemill.Result) {
	t.Helper()
	var seen shapes
	ends = together(t, newGuard(t, inbox, policy), func(ctx context.Context, calls []int) []error {
		if inbox.fails == nil || len(calls) == 1 {
			for range calls {
				if err := inbox.Write(ctx, "charged"); err != nil {
					t.Error(err)
				}
			}
		}
		return errs(seen.note(calls))
	}, "a", "b", "c")
	return seen.ran, ends
}

func succeed(int) []error { return nil }

func TestStartBatch_IsOneTransactionOfAnInbox(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := &batchInbox{inboxRig: newInbox(t)}
		ran, ends := batchOverInbox(t, inbox, oncemill.Policy{}, succeed)
		if len(ran) != 1 || !slices.Equal(ran[0], []int{0, 1, 2}) || inbox.batches != 1 {
			t.Errorf("calls ran as %v, in %d transactions of several; want all in one", ran, inbox.batches)
		}
		for i, res := range ends {
			if res.Status != oncemill.StatusDone || res.Attempt != 1 || res.Duplicate {
				t.Errorf("call %d ended with %+v", i, res)
			}
		}
		inbox.effects(t, 3)
		_, ends = batchOverInbox(t, inbox, oncemill.Policy{}, succeed)
		if slices.ContainsFunc(ends, func(res oncemill.Result) bool { return !res.Duplicate }) {
			t.Errorf("the same batch again ended with %+v, want duplicates", ends)
		}
		inbox.effects(t, 3)
	})
}

// Two calls are several.
func TestStartBatch_IsOneTransactionOfTwo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := &batchInbox{inboxRig: newInbox(t)}
		var seen shapes
		together(t, newGuard(t, inbox, oncemill.Policy{}), func(_ context.Context, calls []int) []error {
			seen.note(calls)
			return nil
		}, "a", "b")
		if len(seen.ran) != 1 || inbox.batches != 1 {
			t.Errorf("calls ran as %v, in %d transactions of several; want both in one", seen.ran, inbox.batches)
		}
	})
}

// What a handler has left to go on ends with its batch.
func TestStartBatch_ContextOfATransactionEndsWithIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var kept context.Context
		together(t, newGuard(t, newInbox(t), oncemill.Policy{}), func(ctx context.Context, _ []int) []error {
			kept = ctx
			return []error{ctx.Err(), ctx.Err()}
		}, "a", "b")
		if kept.Err() == nil {
			t.Error("the context of the batch goes on after it")
		}
	})
}

// One error rolls all back, and then each has its own transaction and its own attempt.
func TestStartBatch_AnErrorRollsTheInboxsBatchBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := &batchInbox{inboxRig: newInbox(t)}
		log := &lines{level: slog.LevelInfo}
		policy := oncemill.Policy{MaxAttempts: 1, Logger: slog.New(log)}
		ran, ends := batchOverInbox(t, inbox, policy, func(run int) []error {
			if run == 1 {
				inbox.effects(t, 0)
				return []error{nil, errRefused, nil}
			}
			return nil
		})
		if len(ran) != 4 || len(ran[0]) != 3 {
			t.Errorf("calls ran as %v, want together, then each alone", ran)
		}
		if err, _ := log.attrs[0]["error"].(error); !errors.Is(err, errRefused) {
			t.Errorf("the log says that all was rolled back because of %v", err)
		}
		for i, res := range ends {
			if res.Status != oncemill.StatusDone || res.Attempt != 1 || res.Outcome.Kind != dedupstore.Succeeded {
				t.Errorf("call %d ended with %+v, want the first attempt", i, res)
			}
		}
		inbox.effects(t, 3)
	})
}

// Only the database's word proves a rollback: what may be committed is not run again.
func TestStartBatch_WhatMayBeCommittedIsNotRunAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		lost := errors.New("connection reset")
		for name, c := range map[string]struct {
			err  error
			want func(oncemill.Result) bool
		}{
			"undecided": {&dedupstore.UndecidedError{Err: lost}, func(res oncemill.Result) bool {
				return res.Status == oncemill.StatusUnrecorded
			}},
			"ended by the handler": {fmt.Errorf("%w: %w", dedupstore.ErrEnded, lost), func(res oncemill.Result) bool {
				return res.Status == oncemill.StatusDone && res.Outcome.Kind == dedupstore.Unknown
			}},
		} {
			inbox := &batchInbox{inboxRig: newInbox(t), fails: func() error { return c.err }}
			ran, ends := batchOverInbox(t, inbox, oncemill.Policy{}, succeed)
			if len(ran) != 1 || slices.ContainsFunc(ends, func(res oncemill.Result) bool { return !c.want(res) }) {
				t.Errorf("%s: ran as %v, ended with %+v", name, ran, ends)
			}
		}
	})
}

// The end of a delivery ends the context of its batch, which is rolled back.
func TestStartBatch_OverAnInboxEndsWithADelivery(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		revoked, revoke := context.WithCancel(t.Context())
		calls := []oncemill.Call{call("revoked"), call("neighbour")}
		var ended sync.WaitGroup
		ended.Add(len(calls))
		g.StartBatch(t.Context(), calls, []context.Context{revoked, t.Context()}, func(ctx context.Context, which []int) []error {
			if len(which) == 1 {
				return nil
			}
			revoke()
			select {
			case <-ctx.Done():
			case <-time.After(time.Hour): // virtual
				t.Error("the batch goes on")
			}
			return []error{ctx.Err(), ctx.Err()}
		}, func(int, oncemill.Result, error) { ended.Done() })
		ended.Wait()
		g.Close()
	})
}

// A handler's error may be one of another inbox. It says nothing about this transaction, which the database has rolled
// back.
func TestStartBatch_AHandlersErrorSaysNothingOfItsTransaction(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := &batchInbox{inboxRig: newInbox(t)}
		ran, ends := batchOverInbox(t, inbox, oncemill.Policy{}, func(run int) []error {
			if run == 1 {
				return []error{nil, fmt.Errorf("another's: %w", dedupstore.ErrEnded), &dedupstore.UndecidedError{Err: errRefused}}
			}
			return nil
		})
		if len(ran) != 4 || slices.ContainsFunc(ends, func(res oncemill.Result) bool { return res.Attempt != 1 }) {
			t.Errorf("ran as %v, ended with %+v, want together, then each alone", ran, ends)
		}
		inbox.effects(t, 3)
	})
}

func TestStartBatch_UnderAPolicyThatParksEachCallHasItsOwnTransaction(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := &batchInbox{inboxRig: newInbox(t)}
		ran, _ := batchOverInbox(t, inbox, oncemill.Irreversible(), succeed)
		if len(ran) != 3 || inbox.batches != 0 {
			t.Errorf("calls ran as %v, want each alone", ran)
		}
		inbox.effects(t, 3)
	})
}

// A database that is away costs no attempt either.
func TestStartBatch_OverAnInboxThatCannotBeginCostsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := &batchInbox{inboxRig: newInbox(t), fails: func() error { return errors.New("no connection") }}
		_, ends := batchOverInbox(t, inbox, oncemill.Policy{MaxAttempts: 1}, succeed)
		for i, res := range ends {
			if res.Status != oncemill.StatusDone || res.Attempt != 1 {
				t.Errorf("call %d ended with %+v, want the first attempt", i, res)
			}
		}
		inbox.effects(t, 3)
	})
}

// A first call whose key has a record takes no part. What became of the batch is not its own.
func TestStartBatch_WhatTookNoPartIsNotEndedWithTheBatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for name, failure := range map[string]error{
			"ended by the handler": dedupstore.ErrEnded, "undecided": &dedupstore.UndecidedError{Err: errRefused},
			"ended, with an error of another": errors.Join(dedupstore.ErrEnded,
				&dedupstore.UndecidedError{Err: errRefused}),
		} {
			inbox := &endingInbox{newFirstInbox(t), failure}
			g := newGuard(t, inbox, oncemill.Policy{})
			if _, err := g.Run(t.Context(), call("b"), func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, errRefused
			}); err == nil {
				t.Fatal("the first attempt has not failed")
			}
			time.Sleep(time.Hour) // virtual: its retry is due
			var seen shapes
			ends := batchOf(t, g, func(_ context.Context, calls []int) []error {
				seen.note(calls)
				return nil
			}, firstly("a"), firstly("b"), firstly("c"))
			if res := ends[1]; res.Outcome.Kind != dedupstore.Succeeded || res.Attempt != 2 || len(seen.ran) != 2 {
				t.Errorf("%s: ran as %v, and the one that took no part ended with %+v", name, seen.ran, res)
			}
			for _, i := range []int{0, 2} {
				parked := ends[i].Outcome.Kind == dedupstore.Unknown
				unrecorded := ends[i].Status == oncemill.StatusUnrecorded
				if res := ends[i]; parked != (name != "undecided") || !parked && !unrecorded {
					t.Errorf("%s: call %d, which may be committed, ended with %+v", name, i, res)
				}
			}
			// the claim that told so is given back
			res, err := g.Run(t.Context(), call("a"), (&counter{}).run)
			if name == "undecided" && (err != nil || res.Attempt != 1) {
				t.Errorf("%s: a redelivery got %+v, %v", name, res, err)
			}
			g.Close()
		}
	})
}

// An endingInbox ends transactions of several runs with an error.
type endingInbox struct {
	*firstInbox
	failure error
}

func (e *endingInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	return e.firstInbox.InTx(ctx, runs,
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			settlements, err := work(ctx, claims)
			if err == nil && len(runs) > 1 {
				err = e.failure
			}
			return settlements, err
		})
}

// Runs of a batch that was rolled back keep their claims until they have run alone, and no longer.
func TestStartBatch_OverAnInboxKeepsTheClaimsOfWhatRunsAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{Lease: 3 * time.Second, MaxAttempts: 1})
		revoked, revoke := context.WithCancel(t.Context())
		ends := make([]oncemill.Result, 2)
		var ended sync.WaitGroup
		ended.Add(2)
		g.StartBatch(t.Context(), []oncemill.Call{call("revoked"), call("neighbour")},
			[]context.Context{revoked, t.Context()}, func(ctx context.Context, which []int) []error {
				if len(which) > 1 {
					revoke()
					<-ctx.Done()
					return []error{ctx.Err(), ctx.Err()}
				}
				time.Sleep(10050 * time.Millisecond) // virtual: not the moment of a renewal
				if until := inbox.records.look(t, "neighbour").Until; which[0] == 1 && !time.Now().Before(until) {
					t.Errorf("its lease has ended at %v, and its handler runs", until)
				}
				return []error{ctx.Err()}
			}, func(i int, res oncemill.Result, _ error) { ends[i] = res; ended.Done() })
		ended.Wait()
		if res := ends[1]; res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("the neighbour ended with %+v", res)
		}
		synctest.Wait() // for what is under way
		n := inbox.records.extended()
		time.Sleep(time.Hour) // virtual
		if inbox.records.extended() != n {
			t.Errorf("leases were extended %d times after that", inbox.records.extended()-n)
		}
		g.Close()
	})
}

// The handler of a batch over an inbox ends when one of its claims is lost, and none is extended after it.
func TestStartBatch_OverAnInboxEndsWithALostClaim(t *testing.T) {
	for _, loses := range []bool{true, false} {
		t.Run(fmt.Sprint(loses), func(t *testing.T) {
			virtual(t, func(t *testing.T) { endsWithALostClaim(t, loses) })
		})
	}
}

func endsWithALostClaim(t *testing.T, loses bool) {
	inbox := newInbox(t)
	if loses {
		inbox.records.extend = func(func() error) error { return dedupstore.ErrClaimLost }
	}
	g := newGuard(t, inbox, oncemill.Policy{Lease: 30 * time.Second})
	batchOf(t, g, func(ctx context.Context, which []int) []error {
		if len(which) == 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			wantError(t, context.Cause(ctx), oncemill.ErrClaimLost)
		case <-time.After(61 * time.Second): // virtual
		}
		if lost := ctx.Err() != nil; lost != loses {
			t.Errorf("the context has ended with %v", context.Cause(ctx))
		}
		return []error{ctx.Err(), ctx.Err()}
	}, call("a"), call("b"))
	synctest.Wait() // for what is under way
	n := inbox.records.extended()
	time.Sleep(time.Hour) // virtual
	if inbox.records.extended() != n {
		t.Errorf("leases were extended %d times after that", inbox.records.extended()-n)
	}
	g.Close()
}

// A batch over an inbox that was told to end because its leases could not be renewed is attempted again, call by call,
// when they can.
func TestStartBatch_OverAnInboxThatWasCutRunsAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		var away atomic.Bool
		away.Store(true)
		inbox.records.extend = func(apply func() error) error {
			if away.Load() {
				return errDown
			}
			return apply()
		}
		g := newGuard(t, inbox, oncemill.Policy{Lease: 30 * time.Second})
		ends := batchOf(t, g, func(ctx context.Context, which []int) []error {
			if len(which) > 1 {
				<-ctx.Done()
				away.Store(false)
				return []error{ctx.Err(), ctx.Err()}
			}
			time.Sleep(40 * time.Second) // virtual: longer than the lease of the call that waits
			return []error{ctx.Err()}
		}, call("a"), call("b"))
		for i, res := range ends {
			if res.Outcome.Kind != dedupstore.Succeeded {
				t.Errorf("call %d ended with %+v", i, res)
			}
		}
		g.Close()
	})
}

// A renewal that is answered late, but before the batch that was told to end has been rolled back, keeps the claims:
// the calls run alone at once.
func TestStartBatch_OverAnInboxALateRenewalLetsWhatWasCutRunAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		cut := make(chan struct{})
		inbox.records.extend = func(apply func() error) error {
			err := apply()
			<-cut
			return err
		}
		g := newGuard(t, inbox, oncemill.Policy{Lease: 30 * time.Second})
		ends := batchOf(t, g, func(ctx context.Context, which []int) []error {
			if len(which) > 1 {
				<-ctx.Done()
				close(cut)
				synctest.Wait()
				return []error{ctx.Err(), ctx.Err()}
			}
			return []error{ctx.Err()}
		}, call("a"), call("b"))
		for i, res := range ends {
			if res.Outcome.Kind != dedupstore.Succeeded {
				t.Errorf("call %d ended with %+v", i, res)
			}
		}
		g.Close()
	})
}

// Records of an inbox say how long runs took, alone and in a batch, that succeed and that fail.
func TestInbox_RecordsSayHowLongRunsTook(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		batchOf(t, g, func(context.Context, []int) []error { time.Sleep(time.Minute); return nil }, call("a"), call("b"))
		for id, err := range map[string]error{"alone": nil, "failed": oncemill.Permanent(errRefused)} {
			_, _ = g.Run(t.Context(), call(id), func(context.Context) (dedupstore.Outcome, error) {
				time.Sleep(time.Minute) // virtual
				return dedupstore.Outcome{}, err
			})
		}
		for _, id := range []string{"a", "b", "alone", "failed"} {
			if seen := inbox.records.look(t, id); seen.Ended.Sub(seen.Claimed) != time.Minute {
				t.Errorf("%s began %v, and ended %v", id, seen.Claimed, seen.Ended)
			}
		}
		g.Close()
	})
}
