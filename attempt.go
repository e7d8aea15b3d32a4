package oncemill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Run claims, unless that has been done, waits as the call says, and runs fn if it may. It returns when the outcome is
// stored, with the results of Guard.Run.
func (t *Ticket) Run(ctx context.Context, fn RunFunc) (Result, error) {
	defer t.leaveTurn()
	began := time.Now()
	e, res, err := t.attempt(ctx, fn)
	if e != nil {
		res, err = t.ended(ctx, e, t.guard.settle(ctx, &t.lease, e.settlement))
	}
	t.log(ctx, &res, err, began)
	return res, err
}

// Attempt is Run, but it does not wait for a success to be stored. It tells done how the call ended, once, with the
// results of Guard.Run. If it returns false, done has been called. If it returns true, a success without outputs is
// being stored together with others. Then done is called when it is stored or lost, in another goroutine, and must not
// wait for anything.
func (t *Ticket) Attempt(ctx context.Context, fn RunFunc, done func(Result, error)) (later bool) {
	defer func() {
		if !later {
			t.leaveTurn()
		}
	}()
	began := time.Now()
	e, res, err := t.attempt(ctx, fn)
	return t.tell(ctx, began, e, res, err, done)
}

// tell ends an attempt: a success without outputs later, when it is stored, and anything else now.
func (t *Ticket) tell(
	ctx context.Context, began time.Time, e *ending, res Result, err error, done func(Result, error),
) (later bool) {
	if e == nil || e.handler != nil {
		if e != nil {
			res, err = t.ended(ctx, e, t.guard.settle(ctx, &t.lease, e.settlement))
		}
		t.log(ctx, &res, err, began)
		done(res, err)
		return false
	}
	l := &t.lease
	l.part.settles.Go(dedupstore.Settling{Claim: *l.claim, Settlement: e.settlement}, func(failed *error) {
		if *failed == nil {
			t.stored(ctx, began, done, nil)
			return
		}
		err := *failed
		t.guard.background.Go(func() {
			err := t.guard.settleAgain(context.WithoutCancel(ctx), l, e.settlement, err)
			t.stored(ctx, began, done, err)
		})
	})
	return true
}

// stored tells how a call ended whose settlement was handed over.
func (t *Ticket) stored(ctx context.Context, began time.Time, done func(Result, error), err error) {
	t.leaveTurn()
	res, err := t.ended(ctx, &t.ending, err)
	t.log(ctx, &res, err, began)
	done(res, err)
}

// log says at level debug that a message was handled, or that a duplicate was not. Failures have lines of their own.
func (t *Ticket) log(ctx context.Context, res *Result, err error, began time.Time) {
	g, key := t.guard, &t.call.Key
	if err != nil || g.policy.Shadow || !g.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	switch {
	case res.Duplicate:
		line := []any{"id", key.ID, "handler", key.Handler, "outcome", string(res.Outcome.Kind), "age", res.Age}
		if id := telemetry.TraceID(t.last.Answer.Trace); id != "" {
			line = append(line, "first_trace_id", id)
		}
		g.log.DebugContext(ctx, "oncemill: duplicate suppressed", line...)
	case res.Outcome.Kind == dedupstore.Succeeded:
		g.log.DebugContext(ctx, "oncemill: handled", "id", key.ID, "handler", key.Handler, "attempt", res.Attempt,
			"took", time.Since(began))
	}
}

// An ending is a settlement that ends a call, and how it ends then.
type ending struct {
	settlement dedupstore.Settlement
	res        Result
	err        error // of a run that was released: it may be tried again
	handler    error
}

// ends says that the call ends with a settlement that can be handed over.
func (t *Ticket) ends(e ending) (*ending, Result, error) {
	t.ending = e
	return &t.ending, Result{}, nil
}

// ended returns how a call ended, when its settlement is stored, or could not be.
func (t *Ticket) ended(ctx context.Context, e *ending, err error) (Result, error) {
	switch {
	case err != nil:
		return Result{}, t.guard.unfinished(ctx, &t.lease, e.handler, err)
	case e.err != nil:
		return Result{}, e.err
	}
	t.guard.countEnd(ctx, &t.call.Key, &e.res.Outcome)
	return e.res, nil
}

// attempt does everything but a settlement that can be handed over.
func (t *Ticket) attempt(ctx context.Context, fn RunFunc) (*ending, Result, error) {
	g := t.guard
	if g.policy.Shadow {
		res, err := g.shadow(ctx, t.call, fn)
		return nil, res, err
	}
	if t.err != nil {
		return nil, Result{}, t.err
	}
	first, res, err := t.runFirst(ctx, fn)
	if first != nil && first.err == nil {
		return nil, res, err
	}
	asking := ctx
	if first != nil { // the claim is for its settlement, which the end of the delivery does not stop
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.policy.Lease)
		defer cancel()
		asking = bounded
	}
	err = t.acquire(asking)
	if first != nil && (is[*StoreError](err) || err != nil && asking.Err() != nil) {
		return nil, Result{}, &UnrecordedError{Key: t.call.Key, Handler: first.err, Err: err}
	}
	answer := &t.last.Answer
	switch e := err.(type) { //nolint:errorlint // never wrapped
	case nil:
	case *BusyError:
		telemetry.LinkOriginal(ctx, t.call.Key.Group, t.call.Key.Handler, t.call.Key.ID, answer.Trace)
		return nil, Result{}, e
	case *bypassError:
		res, err := g.bypass(ctx, *t.call, fn)
		return nil, res, err
	default:
		return nil, Result{}, err
	}
	switch answer.Status {
	case dedupstore.AcquiredRun:
		if first != nil { // it has failed, which is settled under this claim
			g.keeper.let(&t.lease)
			return t.uncommitted(ctx, first, first.err)
		}
		if t.turn != nil {
			ctx = context.WithValue(ctx, turnKey{}, g)
		}
		return t.run(ctx, fn)
	case dedupstore.AcquiredPublish:
		res := Result{Outcome: answer.Outcome, Duplicate: true, Age: answer.Age, Fence: answer.Fence}
		if err := g.renew(ctx, &t.lease, false); err != nil {
			g.keeper.let(&t.lease)
			return nil, Result{}, err
		}
		res, err := t.publish(ctx, res)
		return nil, res, err
	case dedupstore.Done:
		g.duplicates.note(&t.call.Key)
		return nil, Result{Outcome: answer.Outcome, Duplicate: true, Age: answer.Age, Fence: answer.Fence}, nil
	case dedupstore.Mismatch:
		return nil, Result{}, &MismatchError{Key: t.call.Key}
	}
	err = fmt.Errorf("store answered %q", answer.Status)
	return nil, Result{}, &StoreError{Op: "claim", Key: t.call.Key, Err: err}
}

// run calls the handler under its lease, and decides what to store.
func (t *Ticket) run(ctx context.Context, fn RunFunc) (*ending, Result, error) {
	if err := t.start(ctx); err != nil {
		return nil, Result{}, err
	}
	if t.guard.inbox != nil {
		return t.runInTx(ctx, fn)
	}
	began := time.Now()
	outcome, err := t.handle(ctx, fn)
	return t.over(ctx, outcome, err, since(began))
}

// handle calls the handler under its lease.
func (t *Ticket) handle(ctx context.Context, fn RunFunc) (dedupstore.Outcome, error) {
	ctx = t.lease.beginWork(apart(ctx))
	defer t.guard.endWork(&t.lease)
	return t.guard.protect(ctx, t.call, t.lease.claim, fn)
}

// since is how long a run took: at least a millisecond, because stores count those, and take zero for unknown.
func since(began time.Time) time.Duration { return max(time.Since(began), time.Millisecond) }

// start makes sure that the lease holds before a handler starts. A policy that parks also needs the run to be marked as
// started.
func (t *Ticket) start(ctx context.Context) error {
	g, l := t.guard, &t.lease
	l.start()
	err := g.renew(ctx, l, g.policy.ExpiredLease == Park)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	g.keeper.let(l)
	if !l.isLost() { // the error may be ErrClaimLost of another claim, in whose handler this is
		g.giveBack(ctx, l)
	}
	return err
}

// over decides what to store when a run is over.
func (t *Ticket) over(
	ctx context.Context, o dedupstore.Outcome, err error, took time.Duration,
) (*ending, Result, error) {
	g, l := t.guard, &t.lease
	res := Result{Fence: l.claim.Fence, Attempt: l.claim.Attempt, took: took, err: err}
	switch {
	case l.isLost():
		return nil, Result{}, g.lost(ctx, l, err)
	case err != nil:
		return t.failed(ctx, res, o.Result)
	}
	g.succeeded(&o, &res)
	finish := dedupstore.Finish{Outcome: o, Retention: g.window(t.call, o), Took: took}
	if len(o.Produced) == 0 {
		return t.ends(ending{settlement: finish, res: res})
	}
	if err := dedupstore.ValidateSettlement(finish); err != nil {
		// The effect has happened, and running it again would not make these outputs valid.
		res.err = Permanent(fmt.Errorf("the handler's outputs cannot be stored: %w", err))
		return t.failed(ctx, res, o.Result)
	}
	if size(o.Produced) > g.policy.MaxProducedBytes {
		res, err := t.publishFirst(ctx, res, finish)
		return nil, res, err
	}
	res, err = t.finish(ctx, res, finish)
	return nil, res, err
}

// succeeded makes a run without an error a success, for the store and for the caller.
func (g *Guard) succeeded(o *dedupstore.Outcome, res *Result) {
	o.Kind, o.Reason, o.Exhausted = dedupstore.Succeeded, "", false
	res.Outcome = *o
	g.truncate(o)
}

// failed decides what to store of a run that returned an error, and perhaps a result beside it.
func (t *Ticket) failed(ctx context.Context, res Result, result []byte) (*ending, Result, error) {
	// Adapters cancel deliveries for reasons of their own, and the guard does when it cannot renew a lease.
	interrupted := errors.Is(ctx.Err(), context.Canceled) || t.lease.wasCut()
	if t.lease.overran() && !errors.Is(res.err, ErrMaxRun) {
		res.err = fmt.Errorf("%w: %w", ErrMaxRun, res.err)
	}
	v := decide(&t.guard.policy, t.lease.claim, res.err, interrupted)
	if t.call.keep > 0 {
		v = v.ofStep()
	}
	if v.release != nil {
		v.release.Took = res.took
		retry := &RetryError{Delay: v.release.Delay, Attempt: t.lease.claim.Attempt, Uncounted: v.release.Uncounted,
			Err: res.err}
		return t.ends(ending{settlement: *v.release, err: retry, handler: res.err})
	}
	v.outcome.Result = result
	return t.endWith(ctx, res, v.outcome)
}

// endWith stores an outcome that is no success, with its dead letter. A dead letter that is too large for the record is
// left out, and whoever publishes it makes it again.
func (t *Ticket) endWith(ctx context.Context, res Result, o dedupstore.Outcome) (*ending, Result, error) {
	g := t.guard
	o.Produced = g.deadLetter(ctx, t.call, o, t.lease.claim.Attempt, t.lease.claim.Fence)
	res.Outcome = o
	g.truncate(&o)
	finish := dedupstore.Finish{Outcome: o, Retention: g.window(t.call, o), Took: res.took}
	if len(o.Produced) == 0 {
		return t.ends(ending{settlement: finish, res: res, handler: res.err})
	}
	if size(o.Produced) > g.policy.MaxProducedBytes {
		finish = withheld(finish)
	}
	res, err := t.finish(ctx, res, finish)
	return nil, res, err
}

// protect calls the handler and turns a panic into an error, so that it counts as a failed attempt. That includes a
// panic in a method of the error that the handler returned, such as that of a nil pointer. It logs the stack, because
// most callers have no use for the error.
func (g *Guard) protect(
	ctx context.Context, call *Call, c *dedupstore.Claim, fn RunFunc,
) (o dedupstore.Outcome, err error) {
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
	if o, err = fn(g.withClaim(ctx, call, c)); err != nil {
		if _, ok := errors.AsType[txctx.NoTx](err); ok && g.inbox == nil { // of an outbox, which effects precede
			g.tellNoInbox(ctx, c, err)
		}
		_, _, _ = reason(err), uncounted(err), errors.Is(err, errNotRepeated)
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

// lost makes the error of a claim that another owner took over, and says so: the effect of a run may have happened.
func (g *Guard) lost(ctx context.Context, l *lease, handler error) error {
	g.meter.Loss(ctx, l.claim.Key.Group, l.claim.Key.Handler)
	g.log.WarnContext(ctx, "oncemill: claim lost; the outcome of this run, if any, was refused",
		"id", l.claim.Key.ID, "key", l.claim.Key.String(), "fence", l.claim.Fence, "error", handler)
	if handler == ErrClaimLost { //nolint:errorlint // the cause of its own context, and no more
		handler = nil
	}
	return &ClaimLostError{Handler: handler}
}
