package franz

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
)

// A holder has records in its hands: a partition, or a run in a share group.
type holder interface {
	settle(r *record, rejected bool)
	giveBack(ctx context.Context, r *record) // nothing starts any more
	waits(more int)                          // so many more records wait for their time, or fewer
}

// A record is one that its holder has taken. It is offered until it is settled, or until the holder halts.
type record struct {
	*kgo.Record
	*handling
	*running // the holder's: those that have a place, wait for their time, or whose decisions are being carried out
	holder   holder
	entry    *entry // of a partition
	key      string // records of a partition with the same one are handled in order; empty: no order
	offers   int    // with those of earlier deliveries
}

// start offers the record, for which there is a place. It reports false if it does not need that: the record is not
// due, or nothing starts any more. The context is that of the holder's handlers.
func (r *record) start(ctx context.Context) bool {
	if !r.begin() {
		r.holder.giveBack(ctx, r)
		return false
	}
	d, due, err := r.intake.delivery(r.Record)
	if err != nil {
		r.fail(err)
		due = time.Now().Add(maxDelay) // the run ends before
	}
	if time.Until(due) > 0 {
		r.rest(ctx, due)
		r.end()
		return false
	}
	r.offers++
	d.Count = r.offers
	r.process(ctx, r, d)
	return true
}

// rest has the record offered when it is due, or given back if nothing starts any more by then. It takes no place.
func (r *record) rest(ctx context.Context, due time.Time) {
	if !r.begin() {
		r.holder.giveBack(ctx, r)
		return
	}
	r.holder.waits(1)
	over := func() {
		r.holder.waits(-1)
		r.end()
	}
	prevent := r.onHalt(func() {
		defer over()
		r.holder.giveBack(ctx, r)
	})
	after(r.halted, func() time.Duration { return time.Until(due) }, func() {
		if prevent() {
			defer over()
			r.places.add(func() bool { return r.start(ctx) })
			r.places.fill()
		}
	})
}

// decided carries out the decision about the record. It waits for nothing.
func (r *record) decided(ctx context.Context, decision consumer.Decision) {
	r.places.leave()
	if decision.Action == consumer.Ack {
		r.holder.settle(r, false)
		r.end()
		return
	}
	r.places.fill()
	r.carryOut(ctx, decision)
}

func (r *record) carryOut(ctx context.Context, decision consumer.Decision) {
	r.pool.Go(func() {
		defer r.end()
		if settled, delay := r.conclude(ctx, decision); settled {
			r.holder.settle(r, decision.Action == consumer.Reject)
		} else {
			r.rest(ctx, time.Now().Add(delay))
		}
	})
}
