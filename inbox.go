package oncemill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// runInTx runs the handler in a transaction of the inbox, so that its effects and its outcome are committed together. A
// failure is recorded afterwards, when the effects are rolled back.
func (g *Guard) runInTx(ctx context.Context, call *Call, h *holding, fn RunFunc, res *Result) error {
	w := &transacted{guard: g, h: h, fn: fn}
	_, err := g.underLease(ctx, h, func(ctx context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, g.inbox.InTx(ctx, h.claim, w.work)
	})
	if err == nil {
		w.res.Fence, w.res.Attempt = h.claim.Fence, h.claim.Attempt
		*res, err = g.publishStored(ctx, *call, h, w.res, w.sent)
		return err
	}
	*res, err = g.uncommitted(ctx, *call, h, w, err)
	return err
}

// uncommitted deals with a transaction that was rolled back, or may have been.
//
//go:noinline
func (g *Guard) uncommitted(ctx context.Context, call Call, h *holding, w *transacted, err error) (Result, error) {
	res := Result{Fence: h.claim.Fence, Attempt: h.claim.Attempt, err: err}
	failure, handlers := err.(*workError) //nolint:errorlint // InTx returns it as it is
	undecided, unknown := errors.AsType[*dedupstore.UndecidedError](err)
	switch {
	case handlers && !h.isLost():
		res.err = failure.err
		return g.failed(ctx, call, h, res, w.result)
	case handlers:
		return Result{}, g.lost(ctx, h, failure.err)
	// another run could make the effects once more, whatever the handler's error is
	case errors.Is(err, dedupstore.ErrEnded):
		return g.parked(ctx, call, h, res)
	case unknown:
		g.storeFailed(ctx, "settle", err)
		g.log.ErrorContext(ctx, "oncemill: not known whether the handler's transaction has committed; a redelivery "+
			"finds out",
			"id", h.claim.Key.ID, "key", h.claim.Key.String(), "fence", h.claim.Fence, "error", err)
		return Result{}, &UnrecordedError{Key: h.claim.Key, Err: undecided}
	case h.isLost() || claimLost(ctx, err):
		return Result{}, g.lost(ctx, h, nil)
	// the settlement, or a statement of the handler: all is rolled back
	case w.calls > 0 && errors.Is(err, dedupstore.ErrFull) && !nested(err):
		g.storeFailed(ctx, "settle", err)
		res.err = Uncounted(err)
		res, ending := g.failed(ctx, call, h, res, w.result)
		if is[*RetryError](ending) { // else the handler or the policy has decided
			g.log.ErrorContext(ctx, "oncemill: a message waits because the inbox's database has no room",
				"id", h.claim.Key.ID, "key", h.claim.Key.String(), "error", err)
		}
		return res, ending
	case w.calls > 0: // it could not be settled or committed
		return g.failed(ctx, call, h, res, w.result)
	}
	g.giveBack(ctx, h)
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	g.storeFailed(ctx, "begin", err)
	return Result{}, &StoreError{Op: "begin", Key: h.claim.Key, Err: err}
}

// transacted is a handler's run in a transaction, which may have to be repeated.
type transacted struct {
	guard  *Guard
	h      *holding
	fn     RunFunc
	calls  int
	res    Result
	result []byte    // beside an error
	proof  bool      // the last call had no effect at all
	sent   time.Time // not after the settlement was
}

// workError tells a handler's error from those of the database.
type workError struct{ err error }

func (e *workError) Error() string { return e.err.Error() }

// Unwrap lets a store see by the database's error in it that the transaction is to be repeated.
func (e *workError) Unwrap() error { return e.err }

// errNotRepeated ends a run that must not happen twice: its effects outside of the database are not rolled back.
var errNotRepeated = errors.New("the database refused the transaction because of others, and at most once " +
	"the handler must not run again")

// work is what InTx runs.
func (w *transacted) work(ctx context.Context) (dedupstore.Settlement, error) {
	g := w.guard
	if w.calls > 0 && g.policy.ExpiredLease == Park && !w.proof {
		return nil, &workError{errNotRepeated}
	}
	w.calls++
	w.res, w.result, w.proof = Result{}, nil, false
	outcome, err := g.protect(ctx, &w.h.claim, w.fn)
	if err != nil {
		w.result = outcome.Result
		_, w.proof = mark[*noEffectError](err)
		return nil, &workError{err}
	}
	if w.h.isLost() {
		return nil, ErrClaimLost
	}
	g.outcome(&outcome, &w.res)
	finish := dedupstore.Finish{Outcome: outcome, Retention: g.policy.Window}
	if err := dedupstore.ValidateSettlement(finish); err != nil {
		return nil, &workError{Permanent(fmt.Errorf("the handler's outputs cannot be stored: %w", err))}
	}
	w.sent = time.Now()
	return finish, nil
}

// Transacts reports whether runs are in transactions: whether the guard's store is an inbox.
func (g *Guard) Transacts() bool { return g.inbox != nil }
