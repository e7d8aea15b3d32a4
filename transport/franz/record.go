package franz

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
)

// A record is one that its partition has taken from its queue. It is offered until it is settled, or until the
// partition is halted.
type record struct {
	*kgo.Record
	partition *partition
	entry     *entry
	key       string // records with the same one are handled in order; empty: no order
	offers    int
}

// start offers the record, for which there is a place. It reports false if it does not need that: the record is not
// due, or nothing starts any more. The context is that of the partition's handlers.
func (r *record) start(ctx context.Context) bool {
	p, s := r.partition, r.partition.s
	if !p.begin() {
		return false
	}
	d, due, err := s.intake.delivery(r.Record)
	if err != nil {
		s.fail(err)
		due = time.Now().Add(maxDelay) // the run ends before
	}
	if r.offers == 0 && time.Until(due) > 0 {
		s.postponed(ctx, d, r.Record, due)
		r.rest(ctx, due)
		p.end()
		return false
	}
	r.offers++
	d.Count = r.offers
	s.process(ctx, &offer{r.Record, d, p.running, &s.pool, func(decision consumer.Decision) {
		r.decided(ctx, decision)
	}})
	return true
}

// rest has the record offered when it is due. It takes no place until then.
func (r *record) rest(ctx context.Context, due time.Time) {
	places := &r.partition.s.inFlight
	after(r.partition.halted, func() time.Duration { return time.Until(due) }, func() {
		places.add(func() bool { return r.start(ctx) })
		places.fill()
	})
}

// decided carries out what is to be done with the record. It waits for nothing.
func (r *record) decided(ctx context.Context, decision consumer.Decision) {
	p, s := r.partition, r.partition.s
	s.inFlight.leave()
	if decision.Action == consumer.Ack {
		p.settle(r)
		p.end()
		return
	}
	s.inFlight.fill()
	s.pool.Go(func() {
		defer p.end()
		if settled, delay := s.conclude(ctx, r, decision); settled {
			p.settle(r)
		} else {
			r.rest(ctx, time.Now().Add(delay))
		}
	})
}
