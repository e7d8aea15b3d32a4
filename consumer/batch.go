package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A BatchHandler does the work for several deliveries at once. Which are their places in the slice that
// Processor.ProcessTogether got. It returns an error for each, in that order, which has the effect of a Handler's
// error. Nil: all have succeeded. Any other number of errors, or a panic, says that the batch failed as a whole.
// oncemill.RunsFromContext returns the runs.
type BatchHandler func(ctx context.Context, which []int) []error

// ProcessTogether is Process for several deliveries with one call of a handler. Each delivery has a context; the
// handler's is made of ctx and ends when one of theirs does. ProcessTogether returns when the handler has. It tells
// done what to do with each delivery, once, in a goroutine in which done must not wait for anything.
//
// Duplicates and deliveries that have to wait are taken out first. When the batch fails as a whole, all run in batches
// of one, which costs no attempt. Suspects (see oncemill.Call.Stopping) run in batches of one, after the others and one
// at a time. Deliveries that run alone do so in goroutines that run starts.
func (p *Processor) ProcessTogether(ctx context.Context, deliveries []Delivery, of []context.Context,
	handle BatchHandler, run func(work func()), done func(i int, d Decision)) {
	tickets, contexts := p.claimTogether(deliveries, of)
	one := func(i int) Handler {
		return func(ctx context.Context) error { return oneOf(handle(ctx, []int{i})) }
	}
	alone := func(i int) {
		run(func() { tickets[i].Process(contexts[i], one(i), func(d Decision) { done(i, d) }) })
	}
	var together, firsts, suspects []int
	for i, t := range tickets {
		switch {
		case t.guarded == nil:
			alone(i)
		case t.guarded.IsFirst():
			firsts = append(firsts, i)
		case t.guarded.IsSuspect():
			suspects = append(suspects, i)
		case t.guarded.Joins():
			together = append(together, i)
		default:
			alone(i)
		}
	}
	batch := func(which []int, attempt attemptTogether) {
		if len(which) == 1 {
			alone(which[0])
			return
		}
		for _, i := range p.attemptTogether(ctx, tickets, contexts, which, handle, attempt, done) {
			alone(i)
		}
	}
	batch(together, p.guard.AttemptTogether)
	batch(firsts, p.guard.AttemptFirsts)
	for _, i := range suspects {
		alone(i)
	}
}

// Batches reports whether ProcessTogether can call a handler for more than one delivery. Counted says that deliveries
// have a Count: see oncemill.Guard.Batches.
func (p *Processor) Batches(counted bool) bool { return p.guard.Batches(counted) }

type attemptTogether = func(ctx context.Context, tickets []*oncemill.Ticket, contexts []context.Context,
	fn oncemill.BatchFunc, done func(i int, res oncemill.Result, err error)) (alone []int)

// attemptTogether attempts some of the tickets in one call of the handler. It returns those that run alone.
func (p *Processor) attemptTogether(ctx context.Context, tickets []*Ticket, contexts []context.Context, which []int,
	handle BatchHandler, attempt attemptTogether, done func(i int, d Decision)) (alone []int) {
	if len(which) == 0 {
		return nil
	}
	guarded, guardedContexts := make([]*oncemill.Ticket, len(which)), make([]context.Context, len(which))
	for n, i := range which {
		guarded[n], guardedContexts[n] = tickets[i].guarded, contexts[i]
	}
	of := func(calls []int) []int {
		places := make([]int, len(calls))
		for n, call := range calls {
			places[n] = which[call]
		}
		return places
	}
	return of(attempt(ctx, guarded, guardedContexts, func(ctx context.Context, calls []int) []error {
		return measureTogether(ctx, tickets, contexts, of(calls), handle)
	}, func(call int, res oncemill.Result, err error) {
		i := which[call]
		tickets[i].concluded(contexts[i], res, err, func(d Decision) { done(i, d) })
	}))
}

// concluded ends a delivery whose guarded run is over, and tells done what to do with it.
func (t *Ticket) concluded(ctx context.Context, res oncemill.Result, err error, done func(Decision)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover() // of a publisher, perhaps, which may also end the goroutine
		t.end(ctx, nil)
		done(t.processor.unreturned(ctx, &t.delivery, v))
	}()
	d := t.conclude(ctx, res, err)
	t.end(ctx, &d)
	d = Handler(nil).decided(ctx, t, d)
	returned = true
	done(d)
}

// claimTogether claims deliveries, and returns when all claims are answered, with the contexts that have their spans.
func (p *Processor) claimTogether(deliveries []Delivery, of []context.Context) ([]*Ticket, []context.Context) {
	tickets, contexts := make([]*Ticket, len(deliveries)), slices.Clone(of)
	var answered sync.WaitGroup
	answered.Add(len(deliveries))
	for i, d := range deliveries {
		p.Claim(contexts[i], d, func(ctx context.Context, t *Ticket) {
			tickets[i], contexts[i] = t, ctx
			answered.Done()
		})
	}
	answered.Wait()
	return tickets, contexts
}

// measureTogether calls a handler, and measures it for each of its deliveries.
func measureTogether(ctx context.Context, tickets []*Ticket, contexts []context.Context, which []int,
	handle BatchHandler) (errs []error) {
	var began time.Time
	for _, i := range which {
		if tickets[i].observed != nil {
			began = tickets[i].observed.Run()
		}
	}
	returned := false
	defer func() {
		for n, i := range which {
			failure := telemetry.FailedPanic
			switch {
			case returned && errs == nil:
				failure = telemetry.NoFailure
			case returned && len(errs) > 0:
				failure = handlerFailure(errs[min(n, len(errs)-1)])
			case returned:
				failure = telemetry.FailedOther
			}
			if tickets[i].observed != nil {
				tickets[i].observed.Ran(contexts[i], began, failure)
			}
		}
	}()
	errs = handle(ctx, which)
	returned = true
	return errs
}

// oneOf returns the error of a batch of one.
func oneOf(errs []error) error {
	switch {
	case errs == nil:
		return nil
	case len(errs) == 1:
		return errs[0]
	}
	return fmt.Errorf("consumer: a batch handler returned %d errors for one message", len(errs))
}
