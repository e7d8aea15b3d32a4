package oncemill

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// Start is Run for a caller that has many calls and waits for none, each with the context of its delivery. The calls
// are claimed together, fn runs for each in a goroutine of its own, and successes without outputs are stored together.
// Fn and done get the call's place in the slice. Start tells done how each call ended, once, with the results of Run,
// in a goroutine in which done must not wait for anything. If fn ends its goroutine, or something else than fn panics,
// done gets a *PanicError. The slices must not be changed afterwards.
func (g *Guard) Start(contexts []context.Context, calls []Call,
	fn func(ctx context.Context, i int) (dedupstore.Outcome, error), done func(i int, res Result, err error)) {
	s := &started{guard: g, contexts: contexts, fn: fn, done: done, runs: make([]run, len(calls))}
	initAll(s.runs, g, calls, s)
	g.running.Keep(len(calls))
	claimAll(s.runs, contexts)
}

// A started batch of runs has one owner, but each runs for itself.
type started struct {
	guard    *Guard
	contexts []context.Context
	runs     []run
	fn       func(ctx context.Context, i int) (dedupstore.Outcome, error)
	done     func(i int, res Result, err error)
}

func (s *started) claimed(r *run) { s.guard.running.Run((*startedRun)(r)) }

func (s *started) handle(ctx context.Context, r *run) (dedupstore.Outcome, error) {
	return s.fn(ctx, r.place)
}

func (s *started) ended(r *run, res Result, err error) {
	defer s.guard.running.Release()
	s.done(r.place, res, err)
}

// A startedRun is one of a started batch whose claim has its answer.
type startedRun run

// Do goes on with it.
func (s *startedRun) Do() {
	r := (*run)(s)
	r.finish(r.owner.(*started).contexts[r.place])
}

// An Arrival is a call on its way to a handler that has not been reached yet, such as that of a message that passes
// other middlewares first.
type Arrival interface {
	// Claimed is told that the call is claimed, or has another answer, in a goroutine that makes further claims: it
	// must not wait for anything. Have the call begin or give it back, soon: a crash uses up an attempt of what was
	// claimed.
	Claimed()

	// Handle is the handler, which Ahead.Begin calls.
	Handle(ctx context.Context) (dedupstore.Outcome, error)

	// Ended is told how a call that has begun ended, once. It must not wait for anything either.
	Ended(res Result, err error)
}

// StartAhead is Start for an arrival. Each call needs an Ahead of its own.
func (g *Guard) StartAhead(ctx context.Context, a *Ahead, call *Call, of Arrival) {
	a.of = of
	a.run.init(g, call, a, newToken())
	if shard := a.run.claimTogether(ctx, time.Now()); shard != nil {
		shard.claims.Flush()
	}
}

// An Ahead is a call whose claim was made before its handler begins: for transports. Call one of its methods, once. The
// zero value is for StartAhead.
type Ahead struct {
	run run
	of  Arrival
}

func (a *Ahead) claimed(*run) { a.of.Claimed() }

func (a *Ahead) handle(ctx context.Context, _ *run) (dedupstore.Outcome, error) {
	return a.of.Handle(ctx)
}

func (a *Ahead) ended(_ *run, res Result, err error) { a.of.Ended(res, err) }

// Begin runs the handler in the caller's goroutine, if it may, as Start does. If it returns false, the end has been
// told. If it returns true, a success without outputs is being stored together with others, and the end is told when it
// is stored or lost.
func (a *Ahead) Begin(ctx context.Context) (later bool) { return a.run.finish(ctx) }

// GiveBack gives the claim back. It costs no attempt.
func (a *Ahead) GiveBack(ctx context.Context) { a.run.giveBack(ctx) }

// Granted reports whether there is a claim. If not, Begin asks again, and waits as the call says.
func (a *Ahead) Granted() bool { return a.run.state == answered && a.run.holds() }

// finish goes on with a run that may have its answer, and tells its owner how it ended, as settleTold does.
func (r *run) finish(ctx context.Context) (later bool) {
	return r.settleTold(ctx, func() *ending { return r.begin(ctx) })
}

// settleTold settles how a run ends, and tells its owner. It reports true if the owner is told later, by whoever stores
// a plain success together with others. If something panics, or the handler ends its goroutine, the owner gets no
// Result and a *PanicError.
func (r *run) settleTold(ctx context.Context, ends func() *ending) (later bool) {
	over := false
	defer func() {
		if !over {
			v := recover()
			r.leave()
			r.owner.ended(r, Result{}, &PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	e := ends()
	if e.plain() {
		over = true
		r.settling = ctx
		l := &r.lease
		l.shard.settles.Go(dedupstore.Settling{Claim: *l.claim, Settlement: e.settlement}, (*settlingRun)(r))
		return true
	}
	res, err := r.end(ctx, r.settle(ctx, e))
	over = true
	r.owner.ended(r, res, err)
	return false
}

// leave leaves a run that a panic has ended, or the end of its goroutine: its lease ends by itself.
func (r *run) leave() {
	r.leaveTurn()
	r.guard.heartbeat.remove(&r.lease)
}

// A settlingRun is one whose plain success is being stored together with others.
type settlingRun run

// Receive takes the store's answer.
func (s *settlingRun) Receive(failed *error) {
	r := (*run)(s)
	if *failed == nil {
		r.settled(nil)
		return
	}
	err := *failed
	r.guard.background.Go(func() {
		r.settled(r.guard.settleAgain(context.WithoutCancel(r.settling), &r.lease, r.ending.settlement, err))
	})
}

// settled ends a run whose plain success is stored, or could not be.
func (r *run) settled(err error) {
	ctx := r.settling
	res, err := r.end(ctx, r.stored(ctx, &r.ending, time.Time{}, err))
	r.owner.ended(r, res, err)
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
