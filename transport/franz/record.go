package franz

import (
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
// due, or nothing starts any more.
func (r *record) start() bool {
	p, s := r.partition, r.partition.s
	if !p.begin() {
		return false
	}
	d, due, err := s.intake.delivery(r.Record)
	if waits := r.offers == 0 && time.Until(due) > 0; err != nil || waits {
		defer p.end()
		if err != nil {
			s.fail(err)
			return false
		}
		s.postponed(p.ctx, d, r.Record, due)
		r.rest(due)
		return false
	}
	r.offers++
	d.Count = r.offers
	s.process(&offer{ctx: p.ctx, open: p.open, pool: &s.pool, record: r.Record, delivery: d, done: r.decided})
	return true
}

// rest has the record offered when it is due. It takes no place until then.
func (r *record) rest(due time.Time) {
	places := &r.partition.s.inFlight
	after(r.partition.open, func() time.Duration { return time.Until(due) }, func() {
		places.add(r.start)
		places.fill()
	})
}

// decided carries out what is to be done with the record. It waits for nothing.
func (r *record) decided(decision consumer.Decision) {
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
		settled, delay := s.conclude(r, decision)
		if settled {
			p.settle(r)
		} else {
			r.rest(time.Now().Add(delay))
		}
	})
}
