package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A BatchHandler does the work for several deliveries at once: those at these places in the slice that
// Processor.StartBatch got. It returns an error for each, in that order, which has the effect of a Handler's error.
// Nil: all have succeeded. Any other number of errors, or a panic, says that the batch failed as a whole.
// oncemill.RunsFromContext returns the runs.
type BatchHandler func(ctx context.Context, which []int) []error

// StartBatch is Start for several deliveries, each with a context, and one call of a handler. It returns when the
// handler has returned for those that run together, and tells done what to do with each delivery, once, as Start does.
// Until then a delivery must not be changed. oncemill.Guard.StartBatch says which run together, and which alone.
func (p *Processor) StartBatch(ctx context.Context, deliveries []Delivery, contexts []context.Context,
	handle BatchHandler, done func(i int, d Decision)) {
	b := &inboundBatch{handle: handle}
	var calls []oncemill.Call
	var within []context.Context
	var place []int // of each call among the deliveries
	for i := range deliveries {
		in := &inbound{place: i, done: toldEach(done)}
		in.found.call = &oncemill.Call{}
		ctx := p.receive(contexts[i], &deliveries[i], in)
		b.all, b.contexts = append(b.all, in), append(b.contexts, ctx)
		if in.guarded() {
			calls, within, place = append(calls, *in.found.call), append(within, in.within(ctx)), append(place, i)
			continue
		}
		one := Handler(func(ctx context.Context) error { return oneOf(handle(ctx, []int{i})) })
		p.running.Go(func() {
			in.tell(ctx, func() Decision { return in.unguarded(ctx, one) })
		})
	}
	p.guard.StartBatch(ctx, calls, within, func(ctx context.Context, which []int) []error {
		places := make([]int, len(which))
		for n, call := range which {
			places[n] = place[call]
		}
		return b.measure(ctx, places)
	}, func(call int, res oncemill.Result, err error) {
		i := place[call]
		b.all[i].ended(b.contexts[i], Handler(nil), res, err)
	})
}

// Batches reports whether StartBatch can call a handler for more than one delivery: see oncemill.Guard.Batches.
func (p *Processor) Batches() bool { return p.guard.Batches() }

// An inboundBatch is deliveries with one handler, each with the context that has its span.
type inboundBatch struct {
	all      []*inbound
	contexts []context.Context
	handle   BatchHandler
}

// measure calls the handler, and measures it for each of its deliveries.
func (b *inboundBatch) measure(ctx context.Context, which []int) (errs []error) {
	var began time.Time
	for _, i := range which {
		if b.all[i].observed != nil {
			began = b.all[i].observed.Run()
		}
	}
	returned := false
	defer func() {
		for n, i := range which {
			if b.all[i].observed == nil {
				continue
			}
			failure := telemetry.FailedPanic
			switch {
			case returned && errs == nil:
				failure = telemetry.NoFailure
			case returned && len(errs) > 0:
				failure = failureIn(ctx, errs[min(n, len(errs)-1)])
			case returned:
				failure = telemetry.FailedOther
			}
			b.all[i].observed.Ran(b.contexts[i], began, failure)
		}
	}()
	errs = b.handle(ctx, which)
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
