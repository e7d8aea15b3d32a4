package oncemill

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// runInTx runs the handler in a transaction of the inbox, so that its effects and its outcome are committed together. A
// failure is recorded afterwards, when the effects are rolled back.
func (t *Ticket) runInTx(ctx context.Context, fn RunFunc) (*ending, Result, error) {
	l := &t.lease
	w := &transacted{ticket: t, fn: fn}
	err := t.inTx(ctx, w)
	if err == nil {
		w.res.Fence, w.res.Attempt = l.claim.Fence, l.claim.Attempt
		res, err := t.publishStored(ctx, w.res, w.sent)
		return nil, res, err
	}
	return t.uncommitted(ctx, w, err)
}

// inTx calls the handler under its lease, in a transaction.
func (t *Ticket) inTx(ctx context.Context, w *transacted) error {
	ctx = t.lease.beginWork(apart(ctx))
	defer t.guard.endWork(&t.lease)
	t.lease.waits()
	return t.guard.inbox.InTx(ctx, *t.lease.claim, w.work)
}

// first is what a guard knows of first calls, which need no claim before their transaction.
type first struct {
	inbox dedupstore.FirstTransactor // nil: there is none, or the policy does not let it
	wary  atomic.Uint32              // of how many of them one needs none; 0: all
	calls atomic.Uint32              // while the guard is wary
}

// How wary a guard is after a first call that was a duplicate, and after many in a row. They rarely come alone, as when
// a stream is read again, and claims answer many together.
const (
	leastWary = 64
	mostWary  = 1024
)

// may reports whether a call needs no claim.
func (f *first) may(call *Call) bool {
	if f.inbox == nil || !call.First || call.Rerun != 0 {
		return false
	}
	wary := f.wary.Load()
	return wary == 0 || f.calls.Add(1)%wary == 0
}

// was notes whether a call that had no claim was a duplicate.
func (f *first) was(duplicate bool) {
	if duplicate {
		f.wary.Store(min(max(2*f.wary.Load(), leastWary), mostWary))
	} else {
		f.wary.Store(0)
	}
}

// runFirst makes the first run of a key without a claim before it, if it may. It returns nil if the handler was not
// called or has to be called again. Then the ticket asks for a claim, unless it has an answer already. A failed run is
// settled under such a claim.
func (t *Ticket) runFirst(ctx context.Context, fn RunFunc) (*transacted, Result, error) {
	g, l := t.guard, &t.lease
	if !t.first || ctx.Err() != nil {
		return nil, Result{}, nil
	}
	t.part = g.parts.of(ctx, &t.call.Key)
	if !t.part.breaker.healthy.Load() {
		return nil, Result{}, nil
	}
	w := &transacted{ticket: t, fn: fn}
	sent := time.Now()
	answer, err := g.first.inbox.FirstInTx(apart(ctx), g.request(ctx, t.call, t.owner),
		func(ctx context.Context, c dedupstore.Claim) (dedupstore.Settlement, error) {
			l.granted(&c, t.part, sent)
			ctx, end := g.beginFirst(ctx, l)
			defer end()
			return w.work(ctx)
		})
	if answer.Status != "" && err == nil {
		g.first.was(answer.Status == dedupstore.Done)
		t.sent, t.unread = sent, true
		t.take(&dedupstore.ClaimResult{Answer: answer}, sent)
		return nil, Result{}, nil
	}
	if w.calls == 0 {
		return nil, Result{}, nil // the claim meets what is wrong, too
	}
	g.first.was(false)
	if w.err = err; err != nil {
		return w, Result{}, nil
	}
	c := l.claim
	g.count(ctx, &t.call.Key, &dedupstore.Answer{Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: *c})
	w.res.Fence, w.res.Attempt = c.Fence, c.Attempt
	res, err := t.publishStored(ctx, w.res, w.sent)
	return w, res, err
}

// beginFirst begins the work of a first run. Its lease is the transaction's, and needs no renewals.
func (g *Guard) beginFirst(ctx context.Context, l *lease) (_ context.Context, end func()) {
	l.start()
	ctx = l.beginWork(ctx)
	l.unrecorded.Store(true)
	g.keeper.add(l)
	return ctx, func() {
		g.endWork(l)
		l.unrecorded.Store(false)
	}
}

// uncommitted deals with a transaction that was rolled back, or may have been.
func (t *Ticket) uncommitted(ctx context.Context, w *transacted, err error) (*ending, Result, error) {
	g, l := t.guard, &t.lease
	res := Result{Fence: l.claim.Fence, Attempt: l.claim.Attempt, took: w.took, err: err}
	failure, handlers := err.(*workError) //nolint:errorlint // InTx returns it as it is
	undecided, unknown := errors.AsType[*dedupstore.UndecidedError](err)
	switch {
	case handlers && !l.isLost():
		res.err = failure.err
		return t.failed(ctx, res, w.result)
	case handlers:
		return nil, Result{}, g.lost(ctx, l, failure.err)
	// another run could make the effects once more, whatever the handler's error is
	case errors.Is(err, dedupstore.ErrEnded):
		return t.endWith(ctx, res, dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: reason(err)})
	case unknown:
		g.storeFailed(ctx, "settle", err)
		g.log.ErrorContext(ctx, "oncemill: not known whether the handler's transaction has committed; a redelivery "+
			"finds out",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "fence", l.claim.Fence, "error", err)
		return nil, Result{}, &UnrecordedError{Key: l.claim.Key, Err: undecided}
	case l.isLost() || claimLost(ctx, err):
		return nil, Result{}, g.lost(ctx, l, nil)
	// the settlement, or a statement of the handler: all is rolled back
	case w.calls > 0 && errors.Is(err, dedupstore.ErrFull) && !nested(err):
		g.storeFailed(ctx, "settle", err)
		res.err = Uncounted(err)
		e, res, ending := t.failed(ctx, res, w.result)
		if e != nil && e.err != nil { // else the handler or the policy has decided
			g.log.ErrorContext(ctx, "oncemill: a message waits because the inbox's database has no room",
				"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
		}
		return e, res, ending
	case w.calls > 0: // it could not be settled or committed
		return t.failed(ctx, res, w.result)
	}
	g.giveBack(ctx, l)
	if ctx.Err() != nil {
		return nil, Result{}, context.Cause(ctx)
	}
	g.storeFailed(ctx, "begin", err)
	return nil, Result{}, &StoreError{Op: "begin", Key: l.claim.Key, Err: err}
}

// claimLost reports whether the store has answered that the claim is lost. Some stores return the cause of a context
// instead, and that may be another claim's loss, if this call is in its handler.
func claimLost(ctx context.Context, err error) bool {
	return errors.Is(err, dedupstore.ErrClaimLost) && !errors.Is(context.Cause(ctx), dedupstore.ErrClaimLost)
}

// transacted is a handler's run in a transaction, which may have to be repeated.
type transacted struct {
	ticket *Ticket
	fn     RunFunc
	calls  int
	err    error         // of a first run, whose transaction was rolled back
	took   time.Duration // the last call
	res    Result
	result []byte    // beside an error
	proof  bool      // the last call had no effect at all
	sent   time.Time // not after the settlement was
}

// workError tells a handler's error from those of the database.
type workError struct{ err error }

func (e *workError) Error() string { return e.err.Error() }

// Unwrap shows a store the database's error in it, by which it knows that it has to repeat the transaction.
func (e *workError) Unwrap() error { return e.err }

// errNotRepeated ends a run that must not happen twice, because its effects outside of the database are not rolled
// back.
var errNotRepeated = errors.New("the database refused the transaction because of concurrent ones, and under " +
	"at most once the handler must not run again")

// work is what InTx runs.
func (w *transacted) work(ctx context.Context) (dedupstore.Settlement, error) {
	g, l := w.ticket.guard, &w.ticket.lease
	if w.calls > 0 && g.policy.ExpiredLease == Park && !w.proof {
		return nil, &workError{errNotRepeated}
	}
	w.calls++
	l.handles()
	w.res, w.result, w.proof = Result{}, nil, false
	began := time.Now()
	outcome, err := g.protect(ctx, w.ticket.call, l.claim, w.fn)
	w.took = since(began)
	if err != nil {
		w.result = outcome.Result
		_, w.proof = mark[*noEffectError](err)
		return nil, &workError{err}
	}
	if l.isLost() {
		return nil, ErrClaimLost
	}
	g.succeeded(&outcome, &w.res)
	finish := dedupstore.Finish{Outcome: outcome, Retention: g.window(w.ticket.call, outcome), Took: w.took}
	if err := dedupstore.ValidateSettlement(finish); err != nil {
		return nil, &workError{Permanent(fmt.Errorf("the handler's outputs cannot be stored: %w", err))}
	}
	w.sent = time.Now()
	return finish, nil
}

// Transacts reports whether runs are in transactions: whether the guard's store is an inbox.
func (g *Guard) Transacts() bool { return g.inbox != nil }
