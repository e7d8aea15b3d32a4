package oncemill

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// A BatchFunc does the work of several calls at once. Calls are their places in the batch. It returns an error for
// each, in that order, which has the effect of a RunFunc's error. Nil: all have succeeded. Any other number of errors,
// or a panic, says that the batch failed as a whole. RunsFromContext returns the runs. The context is cancelled with
// cause ErrClaimLost when the claim of one of them is lost.
type BatchFunc func(ctx context.Context, calls []int) []error

// StartBatch is Start for several calls, each with the context of its delivery, and one call of fn. The context of fn
// is made of ctx and ends when one of theirs does. StartBatch returns when the calls are claimed and fn has returned
// for those that run together. It tells done how each call ended, once, as Start does.
//
// Duplicates and calls that have to wait go first, each on its own. When the batch fails as a whole, its calls run one
// by one, which costs no attempt; not under a policy that parks, because the effects of the batch may have happened.
// Suspects (see Call.Stopping) run after the others, one at a time. Over an inbox the batch is one transaction, which
// any error rolls back, also that of one call: all of its calls run one by one then.
func (g *Guard) StartBatch(ctx context.Context, calls []Call, contexts []context.Context, fn BatchFunc,
	done func(i int, res Result, err error)) {
	b := &together{guard: g, runs: make([]run, len(calls)), contexts: contexts, fn: fn, done: done}
	b.claim(calls)
	var together, suspects []int
	for i := range b.runs {
		r := &b.runs[i]
		known := r.state == answered && r.last.Err == nil
		switch status := r.last.Answer.Status; {
		case known && status == dedupstore.Suspect:
			suspects = append(suspects, i)
		case known && status == dedupstore.AcquiredRun && g.Batches(), r.first && r.wrong == nil && !g.policy.Shadow:
			together = append(together, i)
		default:
			b.alone(i)
		}
	}
	if g.inbox != nil {
		b.attempt(ctx, together, b.attemptInTx)
	} else {
		b.attempt(ctx, together, b.attemptJoined)
	}
	for _, i := range suspects {
		b.alone(i)
	}
}

// A together is a batch of runs. Slices of ints are places in it.
type together struct {
	guard    *Guard
	runs     []run
	contexts []context.Context
	fn       BatchFunc
	done     func(i int, res Result, err error)
	asked    sync.WaitGroup // claims
}

// claim claims the calls, and returns when all claims are answered.
func (b *together) claim(calls []Call) {
	initAll(b.runs, b.guard, calls, b)
	b.guard.running.Keep(len(calls))
	b.asked.Add(len(calls))
	claimAll(b.runs, b.contexts)
	b.asked.Wait()
}

func (b *together) claimed(*run) { b.asked.Done() }

// handle handles one of the batch, in a batch of one.
func (b *together) handle(ctx context.Context, r *run) (dedupstore.Outcome, error) {
	return dedupstore.Outcome{}, oneOf(b.fn(ctx, []int{r.place}))
}

func (b *together) ended(r *run, res Result, err error) {
	defer b.guard.running.Release()
	b.done(r.place, res, err)
}

// alone runs one of the batch by itself.
func (b *together) alone(i int) {
	b.guard.running.Go(func() { b.runs[i].finish(b.contexts[i]) })
}

// attempt attempts some of the batch in one call of the handler. What that leaves over runs alone.
func (b *together) attempt(ctx context.Context, which []int, how func(context.Context, []int) []int) {
	if len(which) > 1 {
		which = how(ctx, which)
	}
	for _, i := range which {
		b.alone(i)
	}
}

// attemptJoined attempts claimed runs together. It returns those that run alone.
func (b *together) attemptJoined(ctx context.Context, which []int) (alone []int) {
	g := b.guard
	began := time.Now()
	which = b.start(which)
	if len(which) == 0 {
		return nil
	}
	errs, err := b.handleAll(ctx, which)
	if err != nil && g.policy.ExpiredLease != Park {
		for _, i := range which {
			b.runs[i].lease.idle()
			g.heartbeat.add(&b.runs[i].lease)
		}
		return which
	}
	took := since(began)
	for n, i := range which {
		cause := err
		if err == nil {
			cause = errs[n]
		}
		end := func() {
			r, ctx := &b.runs[i], b.contexts[i]
			r.settleTold(ctx, func() *ending { return r.over(ctx, dedupstore.Outcome{}, cause, took) })
		}
		if cause == nil {
			end()
		} else {
			g.running.Go(end) // nothing waits for a dead letter
		}
	}
	return nil
}

// start starts what can be started, and ends the rest.
func (b *together) start(which []int) (started []int) {
	endings := make([]*ending, len(which))
	did := make([]bool, len(which))
	var starting sync.WaitGroup
	for n, i := range which {
		r, ctx := &b.runs[i], b.contexts[i]
		if e, next := r.claim(ctx); next != toRun {
			endings[n] = e
			continue
		}
		start := func() { endings[n], did[n] = r.start(ctx) }
		if b.guard.policy.ExpiredLease == Park { // it talks to the store
			starting.Go(start)
		} else {
			start()
		}
	}
	starting.Wait()
	for n, i := range which {
		r, ctx := &b.runs[i], b.contexts[i]
		switch {
		case did[n] && !r.lease.wasCancelled():
			started = append(started, i)
			continue
		case did[n]: // its lease has ended while another was being started
			endings[n] = r.unstarted(r.unrenewed(ctx, errUnanswered))
		}
		b.guard.running.Go(func() { // what has started waits for no other's shard
			r.settleTold(ctx, func() *ending { return endings[n] })
		})
	}
	return started
}

// handleAll calls the handler under the leases of its runs. The error says that the batch failed as a whole.
func (b *together) handleAll(ctx context.Context, which []int) (errs []error, err error) {
	ctx, cancel := context.WithCancelCause(apart(ctx))
	defer cancel(nil)
	defer follow(b.contexts, which, cancel)()
	runs := make([]Run, len(which))
	for n, i := range which {
		l := &b.runs[i].lease
		l.workUnder(cancelFunc(cancel))
		defer b.guard.heartbeat.remove(l)
		runs[n] = runOf(l.claim)
	}
	errs, err = b.call(ctx, runs, which)
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), ErrMaxRun) {
		for _, i := range which { // also for a neighbour's sake
			b.runs[i].lease.interrupt()
		}
	}
	return errs, err
}

// follow cancels a batch when the context of one of its calls ends, until stop.
func follow(contexts []context.Context, calls []int, cancel context.CancelCauseFunc) (stop func()) {
	var stops []func() bool
	var followed <-chan struct{} // that of neighbours is mostly the same
	for _, i := range calls {
		if one := contexts[i]; one.Done() != followed {
			followed = one.Done()
			stops = append(stops, context.AfterFunc(one, func() { cancel(context.Cause(one)) }))
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

var errGoexit = errors.New("oncemill: the batch handler ended its goroutine (runtime.Goexit)")

// call calls the handler, in a goroutine of its own, which it may end. The error says that the batch failed as a whole.
func (b *together) call(ctx context.Context, runs []Run, which []int) (errs []error, err error) {
	err = errGoexit
	var handling sync.WaitGroup
	handling.Go(func() { errs, err = b.protect(txctx.With(ctx, runs), which) })
	handling.Wait()
	return errs, err
}

func (b *together) protect(ctx context.Context, which []int) (errs []error, err error) {
	log := b.guard.log
	defer func() {
		if v := recover(); v != nil {
			p := &PanicError{Value: v, Stack: debug.Stack()}
			log.ErrorContext(ctx, "oncemill: batch handler panicked; its messages are handled one by one",
				"messages", len(which), "error", p, "stack", string(p.Stack))
			errs, err = nil, p
		}
	}()
	errs = b.fn(ctx, which)
	switch {
	case errs == nil:
		return make([]error, len(which)), nil
	case len(errs) == len(which):
		return errs, nil
	}
	err = errors.Join(errs...)
	log.WarnContext(ctx, "oncemill: a batch failed as a whole; its messages are handled one by one",
		"messages", len(which), "errors", len(errs), "error", err)
	// What marks one says nothing of the others.
	return nil, fmt.Errorf("the batch failed as a whole: %v", err) //nolint:errorlint // see above
}

// Batches reports whether a batch can have more than one call. Under a policy that parks it cannot over an inbox: when
// its transaction is rolled back, its calls could not run again one by one.
func (g *Guard) Batches() bool { return g.inbox == nil || g.policy.ExpiredLease != Park }

// RunsFromContext returns the runs of a batch handler's calls, in their order. It panics outside of a run.
func RunsFromContext(ctx context.Context) []Run {
	if runs, ok := txctx.From[[]Run](ctx); ok {
		return runs
	}
	return []Run{FromContext(ctx)} // of a batch of one
}
