package oncemill

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// An ending is how a call ended, and what is left to do until that is so. Steps return that of their run: by value it
// would fill the stack, which grows on a Router's goroutine for each message (18 % of the CPU; go run
// ./bench/consumer).
type ending struct {
	left       left
	settlement dedupstore.Settlement // to store, first or after the outputs
	sent       time.Time             // when an outcome that is stored was sent, at the earliest; zero: by another run
	res        Result                // the answer, when nothing is left
	err        error                 // instead of an answer
}

// What is left to do after a claim or an attempt, for settle.
type left uint8

const (
	nothing      left = iota
	giveBack          // the claim of a handler that did not start
	store             // the settlement; then publish what it holds
	publish           // what a stored outcome holds
	publishFirst      // outputs that the record cannot hold; then store the settlement
)

// ends sets how the run ends.
func (r *run) ends(e ending) *ending {
	r.ending = e
	return &r.ending
}

// plain reports whether the ending is a success without outputs, whose settlement may travel with others.
func (e *ending) plain() bool {
	return e.left == store && e.res.Handler == nil && len(e.res.Outcome.Produced) == 0
}

// attempt calls the handler under the run's lease, and returns what is left to do. It stores nothing; over an inbox the
// handler's transaction does.
func (r *run) attempt(ctx context.Context) *ending {
	if e, started := r.start(ctx); !started {
		return e
	}
	ctx = r.withTurn(ctx)
	if r.guard.inbox != nil {
		return r.attemptInTx(ctx)
	}
	outcome, took, err := r.handle(ctx)
	return r.over(ctx, outcome, err, took)
}

// start makes sure that the lease holds before a handler starts. A policy that parks also needs the run to be marked as
// started.
func (r *run) start(ctx context.Context) (e *ending, started bool) {
	g, l := r.guard, &r.lease
	l.start()
	switch err := g.renew(ctx, l, g.policy.ExpiredLease == Park); {
	case err == nil && ctx.Err() == nil:
		return nil, true
	case err == nil:
		e = r.ends(ending{err: context.Cause(ctx)})
	default:
		e = r.unrenewed(ctx, err)
	}
	return r.unstarted(e), false
}

// unstarted is the ending of a run whose handler does not start.
func (r *run) unstarted(e *ending) *ending {
	r.guard.heartbeat.remove(&r.lease)
	if !r.lease.isLost() { // the error may be ErrClaimLost of another claim, in whose handler this is
		e.left = giveBack
	}
	return e
}

// handle calls the handler under its lease, and measures how long it took.
func (r *run) handle(ctx context.Context) (o dedupstore.Outcome, took time.Duration, err error) {
	inside := &r.context
	inside.begin(apart(ctx), r.guard, r.call, r.lease.claim)
	began := r.lease.workUnder(inside)
	defer r.guard.endWork(&r.lease)
	o, err = r.protect(inside, r.lease.claim)
	return o, since(began), err
}

// since is how long a run took: at least a millisecond, because stores count those, and take zero for unknown.
func since(began time.Time) time.Duration { return max(time.Since(began), time.Millisecond) }

// over decides what to store when a run is over.
func (r *run) over(ctx context.Context, o dedupstore.Outcome, err error, took time.Duration) *ending {
	g, l := r.guard, &r.lease
	res := Result{Status: StatusDone, Fence: l.claim.Fence, Attempt: l.claim.Attempt, took: took, Handler: err}
	switch {
	case l.isLost():
		return r.lost(ctx, err)
	case err != nil:
		return r.failed(ctx, res, o.Result)
	}
	g.succeeded(&o, &res)
	finish := dedupstore.Finish{Outcome: o, Retention: g.window(r.call, o), Took: took}
	if len(o.Produced) == 0 {
		return r.ends(ending{left: store, settlement: finish, res: res})
	}
	if err := dedupstore.ValidateSettlement(finish); err != nil {
		// The effect has happened, and running it again would not make these outputs valid.
		res.Handler = Permanent(fmt.Errorf("the handler's outputs cannot be stored: %w", err))
		return r.failed(ctx, res, o.Result)
	}
	if size(o.Produced) > g.policy.MaxProducedBytes {
		return r.ends(ending{left: publishFirst, settlement: finish, res: res})
	}
	return r.ends(ending{left: store, settlement: finish, res: res})
}

// succeeded makes a run without an error a success, for the store and for the caller.
func (g *Guard) succeeded(o *dedupstore.Outcome, res *Result) {
	o.Kind, o.Reason, o.Exhausted = dedupstore.Succeeded, "", false
	res.Outcome = *o
	g.truncate(o)
}

// failed decides what to store of a run that returned an error, and perhaps a result beside it.
func (r *run) failed(ctx context.Context, res Result, result []byte) *ending {
	// Adapters cancel deliveries for reasons of their own, and the guard does when it cannot renew a lease.
	interrupted := errors.Is(ctx.Err(), context.Canceled) || r.lease.wasCancelled()
	if r.lease.overran() && !errors.Is(res.Handler, ErrMaxRun) {
		res.Handler = fmt.Errorf("%w: %w", ErrMaxRun, res.Handler)
	}
	v := decide(&r.guard.policy, r.lease.claim, res.Handler, interrupted)
	if r.call.keep > 0 {
		v = v.ofStep()
	}
	if v.release != nil {
		v.release.Took = res.took
		res.Status, res.Fence, res.Wait, res.Uncounted = StatusRetry, 0, v.release.Delay, v.release.Uncounted
		return r.ends(ending{left: store, settlement: *v.release, res: res})
	}
	v.outcome.Result = result
	return r.endWith(ctx, res, v.outcome)
}

// endWith is the ending with an outcome that is no success, and its dead letter. A dead letter that is too large for
// the record is left out, and whoever publishes it makes it again.
func (r *run) endWith(ctx context.Context, res Result, o dedupstore.Outcome) *ending {
	g := r.guard
	o.Produced = g.deadLetter(ctx, r.call, o, r.lease.claim.Attempt, r.lease.claim.Fence)
	res.Outcome = o
	g.truncate(&o)
	finish := dedupstore.Finish{Outcome: o, Retention: g.window(r.call, o), Took: res.took}
	if size(o.Produced) > g.policy.MaxProducedBytes {
		finish = withheld(finish)
	}
	return r.ends(ending{left: store, settlement: finish, res: res})
}

// protect calls the handler and turns a panic into an error, so that it counts as a failed attempt. It logs the stack,
// because most callers have no use for the error.
func (r *run) protect(ctx context.Context, c *dedupstore.Claim) (o dedupstore.Outcome, err error) {
	g := r.guard
	defer func() {
		v := recover()
		if missing, ok := v.(txctx.NoTx); ok {
			o, err = dedupstore.Outcome{}, g.needsInbox(ctx, c, missing)
		} else if v != nil {
			p := &PanicError{Value: v, Stack: debug.Stack()}
			o, err = dedupstore.Outcome{}, p
			g.log.ErrorContext(ctx, "oncemill: handler panicked",
				"id", c.Key.ID, "key", c.Key.String(), "attempt", c.Attempt, "error", p, "stack", string(p.Stack))
		}
	}()
	if o, err = r.owner.handle(ctx, r); err != nil {
		if _, ok := errors.AsType[txctx.NoTx](err); ok && g.inbox == nil { // of an outbox, which effects precede
			g.tellNoInbox(ctx, c, err)
		}
	}
	return o, err
}

// needsInbox makes the error of a handler that panicked for want of a transaction. The program is put together wrongly,
// and no message should fail for that. The error does not vouch for NoEffect: the handler may have done something
// before.
func (g *Guard) needsInbox(ctx context.Context, c *dedupstore.Claim, missing txctx.NoTx) error {
	err := fmt.Errorf("oncemill: the handler wants the transaction of an inbox, and its guard has none: "+
		"give consumer.New or oncemill.NewGuard store.Inbox(): %w", missing)
	g.tellNoInbox(ctx, c, err)
	return Uncounted(err)
}

// tellNoInbox logs once what is wrong.
func (g *Guard) tellNoInbox(ctx context.Context, c *dedupstore.Claim, err error) {
	g.noInbox.Do(func() {
		g.log.ErrorContext(ctx, "oncemill: handler asked for an inbox's transaction, and its guard has no inbox",
			"id", c.Key.ID, "key", c.Key.String(), "error", err)
	})
}

// lost is the ending of a run whose claim another owner took over, and says so: the effect of the run may have
// happened.
func (r *run) lost(ctx context.Context, handler error) *ending {
	g, c := r.guard, r.lease.claim
	g.meter.Loss(ctx, c.Key.Group, c.Key.Handler)
	g.log.WarnContext(ctx, "oncemill: claim lost; the outcome of this run, if any, was refused",
		"id", c.Key.ID, "key", c.Key.String(), "fence", c.Fence, "error", handler)
	if handler == ErrClaimLost { //nolint:errorlint // the cause of its own context, and no more
		handler = nil
	}
	return r.ends(ending{res: Result{Status: StatusLost, Handler: handler}})
}
