package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

func TestNewGuard_RefusesPoliciesThatRunHandlersOutsideTheInboxsTransaction(t *testing.T) {
	t.Parallel()
	for field, policy := range map[string]oncemill.Policy{
		"Policy.StoreDown": {StoreDown: oncemill.FailOpen},
		"Policy.Shadow":    {Shadow: true},
		"Policy.MissingID": {MissingID: oncemill.MissingIDBypass},
	} {
		_, err := oncemill.NewGuard(newInbox(t), policy)
		if invalid := as[*dedupstore.InvalidError](t, err); invalid.Field != field {
			t.Errorf("%v, want one of %s", err, field)
		}
		if _, err := oncemill.NewGuard(newStore(t), policy); err != nil {
			t.Errorf("over a leased store: %v", err)
		}
	}
}

// refuse makes the heartbeats of a rig find the claim lost.
func (r *inboxRig) refuse() {
	r.records.extend = func(func() error) error { return dedupstore.ErrClaimLost }
}

func TestInbox_HandlerThatLostItsClaimRollsBack(t *testing.T) {
	for name, handler := range map[string]error{"and fails": errRefused, "and takes no notice": nil} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				inbox := newInbox(t)
				inbox.refuse()
				g := newGuard(t, inbox, oncemill.Policy{})
				h := inbox.charging(t, func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
					<-ctx.Done()
					if context.Cause(ctx) != oncemill.ErrClaimLost { //nolint:errorlint // itself
						t.Errorf("cause %v", context.Cause(ctx))
					}
					return dedupstore.Outcome{}, handler
				})
				_, err := g.Run(t.Context(), call("m1"), h.run)
				if lost := answertest.Want(t, err, oncemill.StatusLost); lost.Handler != handler { //nolint:errorlint // itself
					t.Errorf("the error names the handler's %v, want %v", lost.Handler, handler)
				}
				inbox.effects(t, 0)
				if n := len(inbox.records.settled); n != 0 {
					t.Errorf("%d settlements by who has no claim", n)
				}
			})
		})
	}
}

func TestInbox_ZombieRollsBackAndItsSuccessorCommits(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		inbox.records.extend = func(func() error) error { return errDown } // it does not learn that its claim is lost
		var successor dedupstore.Claim
		h := inbox.charging(t, func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			time.Sleep(2 * g.Policy().Lease)
			successor = abandonedClaim(t, inbox, "m1")
			return dedupstore.Outcome{}, nil
		})
		_, err := g.Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusLost)
		inbox.effects(t, 0)
		if n := len(inbox.records.settled); n != 1 {
			t.Errorf("%d settlements by the zombie, want no other than the one in its transaction", n)
		}
		synctest.Wait() // its last heartbeat is over
		inbox.records.extend = nil
		time.Sleep(2 * g.Policy().Lease)
		res, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run)
		if err != nil || res.Attempt != 3 || res.Fence <= successor.Fence {
			t.Errorf("successor: %+v, %v", res, err)
		}
		inbox.effects(t, 1)
	})
}

func TestInbox_ConflictIsNotCounted(t *testing.T)          { conflicts(t, false) }
func TestInbox_ConflictsWithoutEndAreCounted(t *testing.T) { conflicts(t, true) }

func conflicts(t *testing.T, endless bool) {
	virtual(t, func(t *testing.T) {
		const attempts = 3
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: attempts})
		serialization := errors.New("could not serialize access")
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			do(func(ctx context.Context) (dedupstore.Settlement, error) {
				_, err := work(ctx)
				return nil, errors.Join(err, serialization)
			})
			return &dedupstore.ConflictError{Err: serialization}
		}
		h := inbox.charging(t, nil)
		for n := range attempts {
			_, err := g.Run(t.Context(), call("m1"), h.run)
			retry := answertest.Want(t, err, oncemill.StatusRetry)
			if !retry.Uncounted || retry.Attempt != 1 || !errors.Is(err, serialization) {
				t.Errorf("%+v", retry)
			}
			if least := time.Second << n * 4 / 5; retry.Wait < least {
				t.Errorf("conflict %d waits %v, want at least %v", n+1, retry.Wait, least)
			}
			time.Sleep(retry.Wait)
			inbox.effects(t, 0)
		}
		if endless {
			_, err := g.Run(t.Context(), call("m1"), h.run)
			if retry := answertest.Want(t, err, oncemill.StatusRetry); retry.Uncounted {
				t.Errorf("after %d conflicts another one is not counted either: it may never end", attempts)
			}
			return
		}
		inbox.inTx = nil
		if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || res.Attempt != 1 || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%+v, %v", res, err)
		}
		inbox.effects(t, 1)
	})
}

// The rest of a commit whose answer is lost: it has happened, or it has not.
func TestInbox_UndecidedCommitIsNeitherFailedNorReleased(t *testing.T) {
	for name, applied := range map[string]bool{"which has happened": true, "which has not happened": false} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				inbox := newInbox(t)
				g := newGuard(t, inbox, oncemill.Policy{})
				gone := errors.New("connection lost")
				inbox.inTx = func(work txWork, do func(txWork) error) error {
					if applied {
						do(work)
					}
					return &dedupstore.UndecidedError{Err: gone}
				}
				h := inbox.charging(t, nil)
				_, err := g.Run(t.Context(), call("m1"), h.run)
				if unrecorded := answertest.Want(t, err, oncemill.StatusUnrecorded); unrecorded.Handler != nil ||
					!errors.Is(err, gone) {
					t.Errorf("%+v", unrecorded)
				}
				inbox.inTx = nil
				for _, s := range inbox.records.settled {
					if _, release := s.(dedupstore.Release); release {
						t.Error("the key was released")
					}
				}
				if !applied {
					_, err = g.Run(t.Context(), call("m1"), h.run)
					answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
					time.Sleep(g.Policy().Lease)
				}
				if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || res.Duplicate != applied || res.Outcome.Kind != dedupstore.Succeeded {
					t.Errorf("redelivery: %+v, %v", res, err)
				}
				inbox.effects(t, 1)
			})
		})
	}
}

func TestInbox_TransactionThatCannotBeginCountsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 1})
		inbox.inTx = func(txWork, func(txWork) error) error { return errDown }
		h := inbox.charging(t, nil)
		for range 5 {
			_, err := g.Run(t.Context(), call("m1"), h.run)
			if e := answertest.Want(t, err, oncemill.StatusStoreDown); !strings.HasPrefix(e.Err.Error(), "begin: ") || !errors.Is(err, errDown) {
				t.Errorf("%+v", e)
			}
		}
		inbox.inTx = nil
		if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || res.Attempt != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		h.want(t, 1)
	})
}

// TestInbox_RunThatNeverBeganIsGivenBackWhenTheDatabaseIs: neither the transaction nor the release finds a database for a while, as when
// it is restarted. Under a policy that parks it may be longer.
func TestInbox_RunThatNeverBeganIsGivenBackWhenTheDatabaseIs(t *testing.T) {
	for name, tc := range map[string]struct {
		policy oncemill.Policy
		away   time.Duration
	}{
		"run again": {oncemill.Policy{}, 4 * time.Second},
		"parks":     {oncemill.Irreversible(), 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				inbox := newInbox(t)
				g := newGuard(t, inbox, tc.policy)
				back := time.Now().Add(tc.away)
				inbox.inTx = func(txWork, func(txWork) error) error { return errDown }
				inbox.records.settle = func(_ dedupstore.Settlement, do func() error) error {
					if time.Now().Before(back) {
						return errDown
					}
					return do()
				}
				h := inbox.charging(t, nil)
				_, err := g.Run(t.Context(), call("m1"), h.run)
				answertest.Want(t, err, oncemill.StatusStoreDown)
				inbox.inTx = nil
				if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || res.Outcome.Kind != dedupstore.Succeeded || res.Attempt != 1 {
					t.Errorf("%+v, %v", res, err)
				}
				h.want(t, 1)
			})
		})
	}
}

// TestInbox_RunThatNeverBeganDoesNotKeepItsCallerLong: a client of HTTP may be waiting.
func TestInbox_RunThatNeverBeganDoesNotKeepItsCallerLong(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		inbox.inTx = func(txWork, func(txWork) error) error { return errDown }
		inbox.records.settle = func(dedupstore.Settlement, func() error) error { return errDown }
		start := time.Now()
		_, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestInbox_FailureAtTheCommitIsACountedAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 3})
		deferred := errors.New("violates foreign key constraint")
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			return do(func(ctx context.Context) (dedupstore.Settlement, error) {
				if _, err := work(ctx); err != nil {
					t.Error(err)
				}
				return nil, deferred
			})
		}
		var p publisher
		c := call("m1")
		c.DeadLetter, c.Publish = deadLetter, p.publish
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{Result: []byte("receipt"), Produced: []dedupstore.Produced{{ID: "out"}}}, nil
		})
		for attempt := 1; attempt < 3; attempt++ {
			_, err := g.Run(t.Context(), c, h.run)
			retry := answertest.Want(t, err, oncemill.StatusRetry)
			if retry.Uncounted || retry.Attempt != attempt || !errors.Is(err, deferred) {
				t.Errorf("%+v", retry)
			}
			time.Sleep(retry.Wait)
		}
		res, err := g.Run(t.Context(), c, h.run)
		if err != nil || !res.Outcome.Exhausted || len(res.Outcome.Result) != 0 || res.Outcome.Reason != deferred.Error() {
			t.Errorf("last attempt: %+v, %v", res, err)
		}
		p.want(t, "dead:failed")
		inbox.effects(t, 0)
	})
}

// A handler that asks another guard, whose store is full, has failed by its own fault: waiting without end is not for us to decide.
func TestInbox_FullStoreOfANestedGuardIsNoneOfTheInbox(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 2})
		h := inbox.charging(t, failing(&oncemill.Error{
			Result: oncemill.Result{Status: oncemill.StatusStoreDown, Err: dedupstore.ErrFull},
		}))
		_, err := g.Run(t.Context(), call("m1"), h.run)
		if retry := answertest.Want(t, err, oncemill.StatusRetry); retry.Uncounted {
			t.Errorf("%+v, want an attempt that counts", retry)
		} else {
			time.Sleep(retry.Wait)
		}
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || !res.Outcome.Exhausted {
			t.Errorf("the last attempt ended with %+v, %v", res.Outcome, err)
		}
	})
}

func TestInbox_HandlerThatEndsTheTransactionIsParked(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		inbox.inTx = func(work txWork, _ func(txWork) error) error {
			_, _ = work(t.Context())
			return fmt.Errorf("the store's: %w", dedupstore.ErrEnded)
		}
		var p publisher
		c := call("m1")
		c.DeadLetter, c.Publish = deadLetter, p.publish
		runs := 0
		run := func(context.Context) (dedupstore.Outcome, error) { runs++; return dedupstore.Outcome{}, nil }
		for range 3 {
			res, err := g.Run(t.Context(), c, run)
			if err != nil || res.Outcome.Kind != dedupstore.Unknown {
				t.Errorf("%+v, %v, want an unknown outcome", res, err)
			}
		}
		if runs != 1 {
			t.Errorf("%d runs: what the first one committed was made again", runs)
		}
		p.want(t, "dead:unknown")
	})
}

func TestInbox_RunThatShutdownInterruptsRollsBackAndIsNotCounted(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		ctx, cancel := context.WithCancel(t.Context())
		h := inbox.charging(t, func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			cancel()
			<-ctx.Done()
			return dedupstore.Outcome{}, inbox.Write(ctx, "charged")
		})
		_, err := g.Run(ctx, call("m1"), h.run)
		if retry := answertest.Want(t, err, oncemill.StatusRetry); !retry.Uncounted ||
			!errors.Is(err, context.Canceled) {
			t.Errorf("%+v", retry)
		}
		inbox.effects(t, 0)
		if res, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run); err != nil || res.Attempt != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		inbox.effects(t, 1)
	})
}

func TestInbox_ContextThatEndsBeforeTheTransactionGivesTheClaimBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 1})
		cause := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			cancel(cause)
			return do(work)
		}
		h := inbox.charging(t, nil)
		if _, err := g.Run(ctx, call("m1"), h.run); err != cause { //nolint:errorlint // itself
			t.Errorf("%v, want the cause", err)
		}
		inbox.inTx = nil
		if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || res.Attempt != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		h.want(t, 1)
		inbox.effects(t, 1)
	})
}

func TestInbox_FailureThatIsNotRecordedIsToldAndRunsAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		inbox.records.settle = func(dedupstore.Settlement, func() error) error { return errDown }
		_, err := g.Run(t.Context(), call("m1"), inbox.charging(t, failing(errRefused)).run)
		if unrecorded := answertest.Want(t, err, oncemill.StatusUnrecorded); unrecorded.Handler == nil ||
			!errors.Is(err, errRefused) || !errors.Is(err, errDown) {
			t.Errorf("%+v", unrecorded)
		}
		inbox.records.settle = nil
		time.Sleep(g.Policy().Lease)
		if _, err := g.Run(t.Context(), call("m1"), inbox.charging(t, nil).run); err != nil {
			t.Error(err)
		}
		inbox.effects(t, 1)
	})
}

func TestInbox_ParkedAtMostOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Irreversible())
		res, err := g.Run(t.Context(), call("fails"), inbox.charging(t, failing(errRefused)).run)
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("a failure without proof: %+v, %v", res, err)
		}
		_, err = g.Run(t.Context(), call("proves"), inbox.charging(t, failing(oncemill.NoEffect(errRefused))).run)
		answertest.Want(t, err, oncemill.StatusRetry)
		crashed := abandonedClaim(t, inbox, "crashes")
		if err := dedupstore.ExtendOne(t.Context(), inbox, dedupstore.Extension{
			Claim: crashed, Lease: crashed.Lease, Started: true,
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(crashed.Lease)
		var never counter
		res, err = g.Run(t.Context(), call("crashes"), never.run)
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("after a crash: %+v, %v", res, err)
		}
		never.want(t, 0)
		inbox.effects(t, 0)
		if res, err := g.Run(t.Context(), call("works"), inbox.charging(t, nil).run); err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%+v, %v", res, err)
		}
		inbox.effects(t, 1)
	})
}

func TestInbox_StoredFailureRunsAgainOnRequest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{})
		res, err := g.Run(t.Context(), call("m1"), inbox.charging(t, failing(oncemill.Permanent(errRefused))).run)
		if err != nil {
			t.Fatal(err)
		}
		c := call("m1")
		c.Rerun = res.Fence
		for duplicate := range 2 {
			res, err := g.Run(t.Context(), c, inbox.charging(t, nil).run)
			if err != nil || res.Outcome.Kind != dedupstore.Succeeded || res.Duplicate != (duplicate == 1) {
				t.Errorf("%+v, %v", res, err)
			}
		}
		inbox.effects(t, 1)
	})
}

// A handler may have called others before the database refused its transaction.
func TestInbox_AtMostOnceTheHandlerIsNotCalledAgainByTheDatabase(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Irreversible())
		refused := errors.New("could not serialize access")
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			do(func(ctx context.Context) (dedupstore.Settlement, error) {
				_, err := work(ctx)
				return nil, errors.Join(err, refused)
			})
			return do(work)
		}
		h := inbox.charging(t, nil)
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Outcome.Kind != dedupstore.Unknown || !strings.Contains(res.Outcome.Reason, "must not run again") {
			t.Errorf("%+v, %v; want it parked, and why", res, err)
		}
		h.want(t, 1)
		inbox.effects(t, 0)
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			do(work)
			return do(work)
		}
		proving := inbox.charging(t, func(_ context.Context, run int) (dedupstore.Outcome, error) {
			if run == 1 {
				return dedupstore.Outcome{}, oncemill.NoEffect(refused)
			}
			return dedupstore.Outcome{}, nil
		})
		if res, err := g.Run(t.Context(), call("m2"), proving.run); err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%+v, %v; want a second call after proof that the first had no effect", res, err)
		}
		proving.want(t, 2)
		inbox.effects(t, 1)
	})
}

var errSerialization = errors.New("could not serialize access")

// As pgstore, mysqlstore and sqlitestore do when the handler has returned the error of a statement that the database
// refused because of others.
func TestInbox_AConflictThatTheHandlerReturnsIsNoFailure(t *testing.T) {
	for name, as := range map[string]func(error) error{
		"as it is":  func(err error) error { return err },
		"permanent": func(err error) error { return oncemill.Permanent(err) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				inbox := newInbox(t)
				g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 3})
				inbox.inTx = func(work txWork, do func(txWork) error) error {
					err := do(work)
					return &dedupstore.ConflictError{Err: err}
				}
				h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
					return dedupstore.Outcome{}, as(fmt.Errorf("insert: %w", errSerialization))
				})
				res, err := g.Run(t.Context(), call("m1"), h.run)
				if err == nil {
					t.Fatalf("the message is over: %+v", res)
				}
				if retry := answertest.Want(t, err, oncemill.StatusRetry); !retry.Uncounted {
					t.Errorf("the conflict counts as an attempt: %+v", retry)
				}
			})
		})
	}
}

// As stores do whose handler has committed by itself and returned an error.
func TestInbox_AHandlerThatEndedItsTransactionAndFailedIsUnknown(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 3})
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			err := do(work)
			return fmt.Errorf("%w: %w", dedupstore.ErrEnded, err)
		}
		h := inbox.charging(t, func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, errSerialization
		})
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("%+v, %v: what was committed is committed again", res, err)
		}
	})
}

// A database without room has rolled the effects back: the message waits, and no attempt is counted.
func TestInbox_FullDatabaseCostsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		full := true
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			return do(func(ctx context.Context) (dedupstore.Settlement, error) {
				s, err := work(ctx)
				if full {
					return nil, fmt.Errorf("%w: commit", dedupstore.ErrFull)
				}
				return s, err
			})
		}
		log := &lines{level: slog.LevelError}
		g := newGuard(t, inbox, oncemill.Policy{MaxAttempts: 1, Logger: slog.New(log)})
		h := inbox.charging(t, nil)
		_, err := g.Run(t.Context(), call("m1"), h.run)
		retry := answertest.Want(t, err, oncemill.StatusRetry)
		if !retry.Uncounted || retry.Wait <= 0 || len(log.lines) != 1 {
			t.Errorf("%+v, the log says %q; want a retry later, and one line", retry, log.lines)
		}
		inbox.effects(t, 0)
		time.Sleep(retry.Wait)
		works := inbox.inTx
		inbox.inTx = func(txWork, func(txWork) error) error { return dedupstore.ErrFull }
		_, err = g.Run(t.Context(), call("m1"), h.run) // the transaction does not begin
		answertest.Want(t, err, oncemill.StatusStoreDown)
		h.want(t, 1)
		inbox.inTx, full = works, false
		if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || res.Attempt != 1 {
			t.Errorf("%+v, %v", res, err)
		}
		inbox.effects(t, 1)
	})
}

// What is too large for the store would be too large each time: that ends the message.
func TestInbox_WhatIsTooLargeFailsForGood(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			return do(func(ctx context.Context) (dedupstore.Settlement, error) {
				_, err := work(ctx)
				return nil, errors.Join(err, fmt.Errorf("%w: commit", dedupstore.ErrTooLarge))
			})
		}
		h := inbox.charging(t, nil)
		res, err := newGuard(t, inbox, oncemill.Policy{}).Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Status != oncemill.StatusDone {
			t.Fatalf("%+v, %v", res, err)
		}
		if o := res.Outcome; o.Kind != dedupstore.Failed || o.Exhausted || !strings.Contains(o.Reason, "too large") {
			t.Errorf("%+v, want a permanent failure that says why", o)
		}
		h.want(t, 1)
		inbox.effects(t, 0)
	})
}

// A store finds the database's error in that of a handler, by which it knows that it has to repeat the transaction.
func TestInbox_ShowsTheStoreTheHandlersError(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newInbox(t)
		inbox.inTx = func(work txWork, do func(txWork) error) error {
			err := do(work)
			if !errors.Is(err, errSerialization) || err.Error() != "insert: "+errSerialization.Error() {
				t.Errorf("the store got %v", err)
			}
			return err
		}
		g := newGuard(t, inbox, oncemill.Policy{})
		if !g.Transacts() || newGuard(t, newStore(t), oncemill.Policy{}).Transacts() {
			t.Error("only a guard over an inbox has transactions")
		}
		_, err := g.Run(t.Context(), call("m1"), inbox.charging(t, failing(fmt.Errorf("insert: %w", errSerialization))).run)
		answertest.Want(t, err, oncemill.StatusRetry)
	})
}
