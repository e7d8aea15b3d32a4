package oncemill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/marks"
)

// attemptInTx runs the handler in a transaction of the inbox, so that its effects and its outcome are committed
// together. A failure is recorded afterwards, when the effects are rolled back.
func (r *run) attemptInTx(ctx context.Context) *ending {
	w := &transacted{run: r}
	if err := r.inTx(ctx, w); err != nil {
		return r.uncommitted(ctx, w, err)
	}
	return r.committed(w)
}

// inTx calls the handler under its lease, in a transaction.
func (r *run) inTx(ctx context.Context, w *transacted) error {
	ctx = r.lease.beginWork(apart(ctx))
	defer r.guard.endWork(&r.lease)
	r.lease.waits()
	_, err := r.guard.inbox.InTx(ctx, []dedupstore.TxRun{{Claim: *r.lease.claim}}, w.alone)
	return err
}

// committed is the ending of a run whose transaction has committed.
func (r *run) committed(w *transacted) *ending {
	e := r.ends(ending{res: w.res, sent: w.sent})
	e.res.Fence, e.res.Attempt, e.res.took = r.lease.claim.Fence, r.lease.claim.Attempt, w.took
	if len(e.res.Outcome.Produced) > 0 {
		e.left = publish
	}
	return e
}

// first is what a guard knows of first calls, which need no claim before their transaction.
type first struct {
	inbox dedupstore.Transactor // nil: the policy lets none be taken
	wary  atomic.Uint32         // of how many of them one needs none; 0: all
	calls atomic.Uint32         // while the guard is wary
}

// How wary a guard is after a first call that was a duplicate, and after many in a row. They rarely come alone, as when
// a stream is read again, and claims answer many together.
const (
	leastWary = 64
	mostWary  = 1024
)

// may reports whether a call needs no claim.
func (f *first) may(call *Call) bool {
	if f.inbox == nil || !call.First || call.Rerun != 0 || !f.inbox.TakesFirst() {
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

// attemptFirst makes the first run of a key without a claim before it, if it may. It reports false if the handler was
// not called or has to be called again. Then the run needs a claim, unless it has an answer already. A failed run is
// settled under such a claim.
func (r *run) attemptFirst(ctx context.Context) (_ *ending, ended bool) {
	g, l := r.guard, &r.lease
	if ctx.Err() != nil {
		return nil, false
	}
	r.shard = g.shards.of(ctx, &r.call.Key)
	if !r.shard.breaker.healthy.Load() {
		return nil, false
	}
	w := &transacted{run: r}
	sent := r.asks()
	request := g.request(ctx, r.call, r.token)
	answers, err := g.inbox.InTx(apart(ctx), []dedupstore.TxRun{{First: &request}},
		func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
			l.granted(&claims[0], r.shard, sent)
			ctx, end := g.beginFirst(ctx, l)
			defer end()
			return w.alone(ctx, claims)
		})
	if err == nil && answers != nil && answers[0].Status != "" {
		g.first.was(answers[0].Status == dedupstore.Done)
		r.knows(&answers[0], sent)
		return nil, false
	}
	if w.calls == 0 {
		return nil, false // the claim meets what is wrong, too
	}
	g.first.was(false)
	if err == nil {
		r.count(ctx, &dedupstore.Answer{
			Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: *l.claim,
		})
		return r.committed(w), true
	}
	return r.firstUncommitted(ctx, w, err), true
}

// knows takes the answer to a first run that did not take part in its transaction, which began at a time.
func (r *run) knows(a *dedupstore.Answer, sent time.Time) {
	r.first, r.state = false, answered
	r.answer(&dedupstore.ClaimResult{Answer: *a}, sent)
}

// firstUncommitted is the ending of a first run whose transaction was rolled back, or may have been. The claim is for
// its settlement, which the end of the delivery does not stop.
func (r *run) firstUncommitted(ctx context.Context, w *transacted, err error) *ending {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.guard.policy.Lease)
	defer cancel()
	undecided, unknown := errors.AsType[*dedupstore.UndecidedError](err)
	switch e, next := r.claim(asking); {
	case next == toRun:
		_ = r.guard.renew(asking, &r.lease, false) // it may be as old as the transaction; else the settlement fails
		r.guard.heartbeat.remove(&r.lease)
		ended := errors.Is(err, dedupstore.ErrEnded)
		if unknown && !ended && !is[*workError](err) { // the claim tells that it was rolled back
			r.guard.storeFailed(ctx, "settle", err)
			return r.ends(ending{left: giveBack, res: Result{Status: StatusUnrecorded, Err: undecided}})
		}
		return r.uncommitted(ctx, w, err)
	case e.res.Status == StatusStoreDown || e.err != nil && asking.Err() != nil:
		return r.ends(ending{res: Result{Status: StatusUnrecorded, Handler: err, Err: cmp.Or(e.err, e.res.Err)}})
	default:
		return e
	}
}

// beginFirst begins the work of a first run. Its lease is the transaction's, and needs no renewals.
func (g *Guard) beginFirst(ctx context.Context, l *lease) (_ context.Context, end func()) {
	l.start()
	ctx = l.beginWork(ctx)
	l.unrecorded.Store(true)
	g.heartbeat.add(l)
	return ctx, func() {
		g.endWork(l)
		l.unrecorded.Store(false)
	}
}

// uncommitted is the ending of a run whose transaction was rolled back, or may have been.
func (r *run) uncommitted(ctx context.Context, w *transacted, err error) *ending {
	g, l := r.guard, &r.lease
	res := Result{
		Status: StatusDone, Fence: l.claim.Fence, Attempt: l.claim.Attempt, took: w.took, Handler: err,
	}
	failure, handlers := err.(*workError) //nolint:errorlint // one that a store wraps is the database's error
	undecided, unknown := errors.AsType[*dedupstore.UndecidedError](err)
	switch {
	case handlers && !l.isLost():
		res.Handler = failure.err
		return r.failed(ctx, res, w.result)
	case handlers:
		return r.lost(ctx, failure.err)
	// another run could make the effects once more, whatever the handler's error is
	case errors.Is(err, dedupstore.ErrEnded):
		return r.endWith(ctx, res, dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: reason(err)})
	case unknown:
		g.storeFailed(ctx, "settle", err)
		g.log.ErrorContext(ctx, "oncemill: not known whether the handler's transaction has committed; a redelivery "+
			"finds out",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "fence", l.claim.Fence, "error", err)
		return r.ends(ending{res: Result{Status: StatusUnrecorded, Err: undecided}})
	case l.isLost() || claimLost(ctx, err):
		return r.lost(ctx, nil)
	// the settlement, or a statement of the handler: all is rolled back
	case w.calls > 0 && errors.Is(err, dedupstore.ErrFull) && !is[*Error](err):
		g.storeFailed(ctx, "settle", err)
		res.Handler = Uncounted(err)
		if errors.Is(err, dedupstore.ErrTooLarge) && !is[*workError](err) { // and would be each time
			res.Handler = Permanent(err)
		}
		e := r.failed(ctx, res, w.result)
		if e.res.Status == StatusRetry { // else the handler or the policy has decided
			g.log.ErrorContext(ctx, "oncemill: a message waits because the inbox's database has no room",
				"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
		}
		return e
	case w.calls > 0: // it could not be settled or committed
		return r.failed(ctx, res, w.result)
	case ctx.Err() != nil:
		return r.ends(ending{left: giveBack, err: context.Cause(ctx)})
	}
	g.storeFailed(ctx, "begin", err)
	return r.ends(ending{left: giveBack, res: storeDown("begin", err)})
}

// claimLost reports whether the store has answered that the claim is lost. Some stores return the cause of a context
// instead, and that may be another claim's loss, if this call is in its handler.
func claimLost(ctx context.Context, err error) bool {
	return errors.Is(err, dedupstore.ErrClaimLost) && !errors.Is(context.Cause(ctx), dedupstore.ErrClaimLost)
}

// transacted is a handler's run in a transaction, which may have to be repeated.
type transacted struct {
	run    *run
	calls  int
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

// alone is what InTx runs for this run alone.
func (w *transacted) alone(ctx context.Context, _ []dedupstore.Claim) ([]dedupstore.Settlement, error) {
	settlement, err := w.work(ctx)
	return []dedupstore.Settlement{settlement}, err
}

// work runs the handler.
func (w *transacted) work(ctx context.Context) (dedupstore.Settlement, error) {
	g, l := w.run.guard, &w.run.lease
	if w.calls > 0 && g.policy.ExpiredLease == Park && !w.proof {
		return nil, &workError{errNotRepeated}
	}
	w.calls++
	l.handles()
	w.res, w.result, w.proof = Result{Status: StatusDone}, nil, false
	began := time.Now()
	outcome, err := w.run.protect(g.withClaim(ctx, w.run.call, l.claim), l.claim)
	w.took = since(began)
	if err != nil {
		w.result = outcome.Result
		_, w.proof = mark[*marks.NoEffect](err)
		return nil, &workError{err}
	}
	if l.isLost() {
		return nil, ErrClaimLost
	}
	g.succeeded(&outcome, &w.res)
	finish := dedupstore.Finish{Outcome: outcome, Retention: g.window(w.run.call, outcome), Took: w.took}
	if err := dedupstore.ValidateSettlement(finish); err != nil {
		return nil, &workError{Permanent(fmt.Errorf("the handler's outputs cannot be stored: %w", err))}
	}
	w.sent = time.Now()
	return finish, nil
}

// Transacts reports whether runs are in transactions: whether the guard's store is an inbox.
func (g *Guard) Transacts() bool { return g.inbox != nil }
