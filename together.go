package oncemill

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
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

// Joins reports whether the ticket, whose claim has been answered, may be attempted together with others. Over an inbox
// none may: each claimed ticket runs in a transaction of its own there.
func (t *Ticket) Joins() bool {
	return t.guard.inbox == nil && t.unread && t.granted && t.last.Answer.Status == dedupstore.AcquiredRun
}

// AttemptTogether attempts tickets that join in one call of fn, each with the context of its delivery. The context of
// fn is made of ctx and ends when one of theirs does. Done is told how each ticket ended, as by Ticket.Attempt.
//
// If the batch failed as a whole, which costs no attempt, AttemptTogether returns the tickets to attempt one by one,
// with Ticket.Attempt. Under a policy that parks it returns none, because the effects of the batch may have happened.
func (g *Guard) AttemptTogether(ctx context.Context, tickets []*Ticket, contexts []context.Context, fn BatchFunc,
	done func(i int, res Result, err error)) (alone []int) {
	began := time.Now()
	calls := g.startTogether(tickets, contexts, done)
	if len(calls) == 0 {
		return nil
	}
	errs, err := g.handleTogether(ctx, tickets, contexts, calls, fn)
	if err != nil && g.policy.ExpiredLease != Park {
		for _, i := range calls {
			tickets[i].lease.rest()
			g.keeper.add(&tickets[i].lease)
		}
		return calls
	}
	took := since(began)
	var failing sync.WaitGroup // none waits for the dead letter of another
	for n, i := range calls {
		t, ctx, cause := tickets[i], contexts[i], err
		if err == nil {
			cause = errs[n]
		}
		end := func() {
			e, res, err := t.over(ctx, dedupstore.Outcome{}, cause, took)
			t.tell(ctx, began, e, res, err, func(res Result, err error) { done(i, res, err) })
		}
		if cause == nil {
			end()
		} else {
			failing.Go(end)
		}
	}
	failing.Wait()
	return nil
}

// startTogether starts what can be started, and ends the rest.
func (g *Guard) startTogether(tickets []*Ticket, contexts []context.Context,
	done func(i int, res Result, err error)) (calls []int) {
	errs := make([]error, len(tickets))
	var starting sync.WaitGroup
	for i, t := range tickets {
		if errs[i] = t.acquire(contexts[i]); errs[i] != nil {
			continue
		}
		if g.policy.ExpiredLease == Park { // it talks to the store
			starting.Go(func() { errs[i] = t.start(contexts[i]) })
		} else {
			errs[i] = t.start(contexts[i])
		}
	}
	starting.Wait()
	for i, err := range errs {
		if err == nil {
			calls = append(calls, i)
		} else {
			done(i, Result{}, err)
		}
	}
	return calls
}

// handleTogether calls the handler under the leases of its calls. The error says that the batch failed as a whole.
func (g *Guard) handleTogether(
	ctx context.Context, tickets []*Ticket, contexts []context.Context, calls []int, fn BatchFunc,
) (errs []error, err error) {
	ctx, cancel := context.WithCancelCause(apart(ctx))
	defer cancel(nil)
	defer follow(contexts, calls, cancel)()
	runs := make([]Run, len(calls))
	for n, i := range calls {
		l := &tickets[i].lease
		l.workUnder(cancel)
		defer g.keeper.let(l)
		runs[n] = runOf(l.claim)
	}
	errs, err = g.callTogether(ctx, runs, calls, fn)
	if errors.Is(ctx.Err(), context.Canceled) && context.Cause(ctx) != ErrMaxRun { //nolint:errorlint // never wrapped
		for _, i := range calls { // also for a neighbour's sake
			tickets[i].lease.interrupt()
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

// callTogether calls the handler, in a goroutine of its own, which it may end. The error says that the batch failed as
// a whole.
func (g *Guard) callTogether(ctx context.Context, runs []Run, calls []int, fn BatchFunc) (errs []error, err error) {
	err = errGoexit
	var handling sync.WaitGroup
	handling.Go(func() { errs, err = g.callHandler(txctx.With(ctx, runs), calls, fn) })
	handling.Wait()
	return errs, err
}

func (g *Guard) callHandler(ctx context.Context, calls []int, fn BatchFunc) (errs []error, err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &PanicError{Value: v, Stack: debug.Stack()}
			g.log.ErrorContext(ctx, "oncemill: batch handler panicked; its messages are handled one by one",
				"messages", len(calls), "error", p, "stack", string(p.Stack))
			errs, err = nil, p
		}
	}()
	errs = fn(ctx, calls)
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
	return nil, fmt.Errorf("the batch failed as a whole: %v", err) // what marks one says nothing of the others
}

// IsFirst reports whether the ticket is attempted without a claim: in a transaction of an inbox, see Call.First.
func (t *Ticket) IsFirst() bool { return t.first && t.err == nil && !t.guard.policy.Shadow }

// AttemptFirsts is AttemptTogether for tickets that are the first of their calls (IsFirst), in one transaction of the
// inbox. Any error rolls all of it back. It also returns the tickets that others run, or whose outcome is known.
func (g *Guard) AttemptFirsts(ctx context.Context, tickets []*Ticket, contexts []context.Context, fn BatchFunc,
	done func(i int, res Result, err error)) (alone []int) {
	requests, byOwner := make([]dedupstore.Request, len(tickets)), map[string]int{}
	for i, t := range tickets {
		requests[i], byOwner[t.owner] = g.request(contexts[i], t.call, t.owner), i
		alone = append(alone, i)
	}
	if !g.parts.of(ctx, &tickets[0].call.Key).breaker.healthy.Load() {
		return alone
	}
	ctx, cancel := context.WithCancelCause(apart(ctx))
	defer cancel(nil)
	defer follow(contexts, alone, cancel)()
	began, took := time.Now(), time.Duration(0)
	claims, err := g.first.inbox.FirstsInTx(ctx, requests, func(ctx context.Context, claims []dedupstore.Claim) error {
		runs, calls := make([]Run, len(claims)), make([]int, len(claims))
		for n, c := range claims {
			runs[n], calls[n] = runOf(&c), byOwner[c.Owner]
		}
		l := &tickets[calls[0]].lease // one stands for all
		l.granted(&claims[0], nil, began)
		ctx, end := g.beginFirst(ctx, l)
		defer end()
		began = time.Now()
		errs, err := g.callTogether(ctx, runs, calls, fn)
		took = since(began)
		return errors.Join(append(errs, err)...)
	})
	if err != nil {
		g.log.WarnContext(ctx, "oncemill: a batch was rolled back; its messages are handled one by one",
			"messages", len(alone), "error", err)
		return alone
	}
	g.first.was(len(claims) == 0)
	committed := map[int]bool{}
	for _, c := range claims {
		i := byOwner[c.Owner]
		committed[i] = true
		t, ctx := tickets[i], contexts[i]
		g.count(ctx, &t.call.Key,
			&dedupstore.Answer{Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: c})
		res := Result{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Fence: c.Fence, Attempt: 1, took: took}
		t.log(ctx, &res, nil, began)
		done(i, res, nil)
	}
	return slices.DeleteFunc(alone, func(i int) bool { return committed[i] })
}

// Batches reports whether a batch can have more than one call. Over an inbox that needs a store that makes first runs of
// several keys (dedupstore.FirstTransactor), a policy that does not park, and somebody who counts deliveries
// (Call.First).
func (g *Guard) Batches(counted bool) bool { return g.inbox == nil || g.first.inbox != nil && counted }

// RunsFromContext returns the runs of a batch handler's calls, in their order. It panics outside of a run.
func RunsFromContext(ctx context.Context) []Run {
	if runs, ok := txctx.From[[]Run](ctx); ok {
		return runs
	}
	return []Run{FromContext(ctx)} // of a batch of one
}
