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

// A BatchFunc does the work of several calls at once, which are named by their places in the batch. It returns an error
// for each, in that order, which steers as that of a RunFunc does; nil: all have succeeded. Any other number of errors,
// or a panic, says that the batch failed as a whole. RunsFromContext returns the runs. The context is cancelled with
// cause ErrClaimLost when the claim of one of them is lost.
type BatchFunc func(ctx context.Context, calls []int) []error

// A Member is a ticket in a batch.
type Member struct {
	Ticket  *Ticket
	Context context.Context     // of its delivery
	Done    func(Result, error) // is told how its call ended, as by Ticket.Attempt
}

// Joins reports whether the ticket, whose claim has been answered, may be attempted together with others.
func (t *Ticket) Joins() bool {
	return t.unread && t.granted && t.last.Answer.Status == dedupstore.AcquiredRun && !t.TookOver()
}

// TookOver reports whether the ticket's claim found the expired lease of a run that may have ended its process. It is
// not to be attempted beside others: it would spend their attempts.
func (t *Ticket) TookOver() bool { return t.unread && t.granted && tookOver(&t.last.Answer) }

// AttemptTogether attempts tickets that join in one call of fn. It returns those that have to be attempted by
// themselves, with Ticket.Attempt, because the batch failed as a whole, which has cost no attempt; under a policy that
// parks there are none, since the effects of the batch may have happened. The others have ended as by Ticket.Attempt.
func (g *Guard) AttemptTogether(ctx context.Context, batch []Member, fn BatchFunc) (alone []int) {
	began := time.Now()
	calls := g.startTogether(batch)
	if len(calls) == 0 {
		return nil
	}
	errs, err := g.handleTogether(ctx, batch, calls, fn)
	if err != nil && g.policy.ExpiredLease != Park {
		for _, i := range calls {
			t := batch[i].Ticket
			t.lease.rest()
			g.keeper.hold(&t.lease)
		}
		return calls
	}
	took := since(began)
	for n, i := range calls {
		m := &batch[i]
		cause := err
		if err == nil {
			cause = errs[n]
		}
		e, res, err := m.Ticket.over(m.Context, dedupstore.Outcome{}, cause, took)
		m.Ticket.tell(m.Context, began, e, res, err, m.Done)
	}
	return nil
}

// startTogether starts what can be started, and ends the rest.
func (g *Guard) startTogether(batch []Member) (calls []int) {
	errs := make([]error, len(batch))
	var starting sync.WaitGroup
	for i, m := range batch {
		if errs[i] = m.Ticket.acquire(m.Context); errs[i] != nil {
			continue
		}
		if g.policy.ExpiredLease == Park { // it talks to the store
			starting.Go(func() { errs[i] = m.Ticket.start(m.Context) })
		} else {
			errs[i] = m.Ticket.start(m.Context)
		}
	}
	starting.Wait()
	for i, m := range batch {
		if errs[i] == nil {
			calls = append(calls, i)
		} else {
			m.Done(Result{}, errs[i])
		}
	}
	return calls
}

// handleTogether calls the handler under the leases of its calls. The error says that the batch failed as a whole.
func (g *Guard) handleTogether(
	ctx context.Context, batch []Member, calls []int, fn BatchFunc,
) (errs []error, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	runs := make([]Run, len(calls))
	for n, i := range calls {
		l := &batch[i].Ticket.lease
		l.workUnder(cancel)
		defer g.keeper.let(l)
		runs[n] = runOf(l.claim)
	}
	defer func() {
		if v := recover(); v != nil {
			p := &PanicError{Value: v, Stack: debug.Stack()}
			g.log.ErrorContext(ctx, "oncemill: batch handler panicked; its messages are handled one by one",
				"messages", len(calls), "error", p, "stack", string(p.Stack))
			errs, err = nil, p
		}
	}()
	errs = fn(txctx.With(ctx, runs), calls)
	for _, err := range errs {
		if err != nil {
			_, _, _ = reason(err), uncounted(err), errors.Is(err, errNotRepeated) // what panics in it does so here
		}
	}
	switch {
	case errs == nil:
		return make([]error, len(calls)), nil
	case len(errs) == len(calls):
		return errs, nil
	}
	err = errors.Join(errs...)
	g.log.WarnContext(ctx, "oncemill: a batch failed as a whole; its messages are handled one by one",
		"messages", len(calls), "errors", len(errs), "error", err)
	return nil, fmt.Errorf("the batch failed as a whole: %w", err)
}

// RunsFromContext returns the runs that a batch handler does the work of, in the order of its calls. It panics outside
// of a run.
func RunsFromContext(ctx context.Context) []Run {
	if runs, ok := txctx.From[[]Run](ctx); ok {
		return runs
	}
	return []Run{FromContext(ctx)} // of a batch of one
}
