package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A BatchHandler does the work for several deliveries at once, which are named by their places in what
// Processor.ProcessTogether got. It returns an error for each, in that order, which steers as that of a Handler does;
// nil: all have succeeded. Any other number of errors, or a panic, says that the batch failed as a whole.
// oncemill.RunsFromContext returns the runs.
type BatchHandler func(ctx context.Context, which []int) []error

// ProcessTogether is Process for several deliveries with one call of a handler. Duplicates, and what has to wait, are
// taken out before. All run in batches of one when the batch fails as a whole; that costs no attempt. Deliveries that
// are not the first of their message, or whose claim finds an expired lease, are claimed and run one after the other: a
// message that ends its process each time costs the others no attempt. ProcessTogether returns when the handler has,
// and tells done what to do with each delivery, once, in a goroutine in which done must not wait for anything. What
// runs alone does so in goroutines that run starts.
func (p *Processor) ProcessTogether(ctx context.Context, deliveries []Delivery, handle BatchHandler,
	run func(work func()), done func(i int, d Decision)) {
	tickets := p.claimTogether(ctx, deliveries)
	one := func(i int) Handler {
		return func(ctx context.Context) error { return oneOf(handle(ctx, []int{i})) }
	}
	alone := func(i int) {
		t := tickets[i]
		run(func() { t.Process(t.ctx, one(i), func(d Decision) { done(i, d) }) })
	}
	var together, suspects []int
	for i, t := range tickets {
		switch {
		case t.Ticket == nil || t.guarded != nil && t.guarded.TookOver():
			suspects = append(suspects, i)
		case t.guarded != nil && t.guarded.Joins():
			together = append(together, i)
		default:
			alone(i)
		}
	}
	if len(suspects) > 0 {
		run(func() {
			var back sync.WaitGroup
			for _, i := range suspects {
				if tickets[i].Ticket != nil {
					back.Go(func() { tickets[i].GiveBack(tickets[i].ctx) })
				}
			}
			back.Wait()
			for _, i := range suspects {
				done(i, p.Process(ctx, deliveries[i], one(i)))
			}
		})
	}
	if len(together) == 1 {
		alone(together[0])
		return
	}
	batch := make([]oncemill.Member, len(together))
	for n, i := range together {
		t := tickets[i]
		batch[n] = oncemill.Member{Ticket: t.guarded, Context: t.ctx, Done: func(res oncemill.Result, err error) {
			decision := t.conclude(t.ctx, res, err)
			t.end(t.ctx, &decision)
			done(i, Handler(nil).decided(t.ctx, t.Ticket, decision))
		}}
	}
	failed := p.guard.AttemptTogether(ctx, batch, func(ctx context.Context, calls []int) []error {
		which := make([]int, len(calls))
		for n, call := range calls {
			which[n] = together[call]
		}
		return measureTogether(ctx, tickets, which, handle)
	})
	for _, call := range failed {
		alone(together[call])
	}
}

// A claimed is a delivery whose claim is answered.
type claimed struct {
	*Ticket
	ctx context.Context // with its span
}

// claimTogether claims deliveries that come for the first time, and returns when all claims are answered.
func (p *Processor) claimTogether(ctx context.Context, deliveries []Delivery) []claimed {
	tickets := make([]claimed, len(deliveries))
	var answered sync.WaitGroup
	for i, d := range deliveries {
		if d.Count > 1 {
			continue
		}
		answered.Add(1)
		p.Claim(ctx, d, func(ctx context.Context, t *Ticket) {
			tickets[i] = claimed{t, ctx}
			answered.Done()
		})
	}
	answered.Wait()
	return tickets
}

// measureTogether calls a handler, and measures it for each of its deliveries.
func measureTogether(ctx context.Context, tickets []claimed, which []int, handle BatchHandler) (errs []error) {
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
			if returned && len(errs) == 0 {
				failure = telemetry.NoFailure
			} else if returned {
				failure = handlerFailure(errs[min(n, len(errs)-1)])
			}
			if tickets[i].observed != nil {
				tickets[i].observed.Ran(tickets[i].ctx, began, failure)
			}
		}
	}()
	errs = handle(ctx, which)
	returned = true
	return errs
}

// oneOf returns the error of a batch of one.
func oneOf(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("consumer: a batch handler returned %d errors for one message", len(errs))
}
