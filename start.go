package oncemill

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/oncemill/oncemill/dedupstore"
)

// Start is Run for a caller that has many calls and waits for none. The call is claimed together with others that come
// at this time, fn runs in a goroutine of its own, and a success without outputs is stored together with others. Start
// tells done how the call ended, once, with the results of Run, in a goroutine in which done must not wait for
// anything. If fn ends its goroutine, or something else than fn panics, done gets a *PanicError. The call must not be
// changed afterwards.
func (g *Guard) Start(ctx context.Context, call *Call, fn RunFunc, done func(Result, error)) {
	r := g.newRun(call)
	r.keeps = true
	g.running.Keep(1)
	r.claimTogether(ctx, func() {
		g.running.Go(func() { r.finish(ctx, fn, done) })
	})
}

// StartAhead is Start for a call whose handler has not been reached yet, such as that of a message that passes other
// middlewares first. It calls ready when the call is claimed, or has another answer, in a goroutine that makes further
// claims: ready must not wait for anything. Begin or give back what it is told, soon: a crash uses up an attempt of
// what was claimed.
func (g *Guard) StartAhead(ctx context.Context, call *Call, ready func(Ahead)) {
	r := g.newRun(call)
	r.claimTogether(ctx, func() { ready(Ahead{r}) })
}

// An Ahead is a call whose claim was made before its handler begins. Call one of its methods, once.
type Ahead struct{ run *run }

// Begin runs fn in the caller's goroutine, if it may, as Start does. If it returns false, done has been called. If it
// returns true, a success without outputs is being stored together with others, and done is called when it is stored or
// lost.
func (a Ahead) Begin(ctx context.Context, fn RunFunc, done func(Result, error)) (later bool) {
	return a.run.finish(ctx, fn, done)
}

// GiveBack gives the claim back. It costs no attempt.
func (a Ahead) GiveBack(ctx context.Context) { a.run.giveBack(ctx) }

// Granted reports whether there is a claim. If not, Begin asks again, and waits as the call says.
func (a Ahead) Granted() bool { return a.run.state == answered && a.run.holds() }

// finish goes on with a run that may have its answer, and tells done how it ended, as settleTold does.
func (r *run) finish(ctx context.Context, fn RunFunc, done func(Result, error)) (later bool) {
	return r.settleTold(ctx, func() *ending { return r.begin(ctx, fn) }, done)
}

// settleTold settles how a run ends, and tells done. It reports true if done is called later, by whoever stores a plain
// success together with others. If something panics, or the handler ends its goroutine, done gets no Result and a
// *PanicError.
func (r *run) settleTold(ctx context.Context, ends func() *ending, done func(Result, error)) (later bool) {
	over := false
	defer func() {
		if !over {
			v := recover()
			r.leaveTurn()
			r.tell(done, Result{}, &PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	e := ends()
	if e.plain() {
		over = true
		r.settleTogether(ctx, e, done)
		return true
	}
	e = r.settle(ctx, e)
	over = true
	res, err := r.end(ctx, e)
	r.tell(done, res, err)
	return false
}

// tell tells done how the run has ended.
func (r *run) tell(done func(Result, error), res Result, err error) {
	if r.keeps {
		defer r.guard.running.Release()
	}
	done(res, err)
}

// settleTogether is settle and end for a plain success, which is stored together with others.
func (r *run) settleTogether(ctx context.Context, e *ending, done func(Result, error)) {
	l := &r.lease
	l.shard.settles.Go(dedupstore.Settling{Claim: *l.claim, Settlement: e.settlement}, func(failed *error) {
		if *failed == nil {
			res, err := r.end(ctx, r.stored(ctx, e, r.began, nil))
			r.tell(done, res, err)
			return
		}
		err := *failed
		r.guard.background.Go(func() {
			err := r.guard.settleAgain(context.WithoutCancel(ctx), l, e.settlement, err)
			res, err := r.end(ctx, r.stored(ctx, e, r.began, err))
			r.tell(done, res, err)
		})
	})
}

// oneOf returns the error of a batch of one.
func oneOf(errs []error) error {
	switch {
	case errs == nil:
		return nil
	case len(errs) == 1:
		return errs[0]
	}
	return fmt.Errorf("oncemill: a batch handler returned %d errors for one call", len(errs))
}
