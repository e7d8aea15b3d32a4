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
// taken out before, and so is a delivery whose last run ended with its process: it runs alone. So do all, in batches of
// one, when the batch fails as a whole; that costs no attempt. It returns when the handler has, and tells done what to
// do with each delivery, once, in a goroutine in which done must not wait for anything. What runs alone does so in
// goroutines that run starts.
func (p *Processor) ProcessTogether(ctx context.Context, deliveries []Delivery, handle BatchHandler,
	run func(work func()), done func(i int, d Decision)) {
	tickets := p.claimTogether(ctx, deliveries)
	alone := func(i int) {
		t := tickets[i]
		one := func(ctx context.Context) error { return oneOf(handle(ctx, []int{i})) }
		run(func() { t.Process(t.ctx, one, func(d Decision) { done(i, d) }) })
	}
	var together []int
	for i, t := range tickets {
		if t.guarded != nil && t.guarded.Joins() {
			together = append(together, i)
		} else {
			alone(i)
		}
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

// claimTogether claims deliveries, and returns when all claims are answered.
func (p *Processor) claimTogether(ctx context.Context, deliveries []Delivery) []claimed {
	tickets := make([]claimed, len(deliveries))
	var answered sync.WaitGroup
	answered.Add(len(deliveries))
	for i, d := range deliveries {
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
