package franz

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
)

// A record is one that its partition has taken. It is offered until it is settled, or until the partition is given up.
type record struct {
	*kgo.Record
	*handling
	*running // the partition's: those that have a place, wait for their time, or whose decisions are being carried out
	of       *partition
	entry    *entry // by itself, because it may stay in the partition for much longer than the record
	key      string // records of a partition with the same one are handled in order; empty: no order
	offers   int
	started  bool // its handler has been called in this offer
}

// start offers the record, for which there is a place. It reports false if it does not need that: the record is not
// due, or nothing starts any more.
func (r *record) start() bool {
	if !r.begin() {
		return false
	}
	d, due, err := r.intake.delivery(r.Record)
	if err != nil {
		r.fail(err)
		due = time.Now().Add(maxDelay) // the run ends before
	}
	if !due.IsZero() && time.Until(due) > 0 {
		r.rest(due)
		r.end()
		return false
	}
	r.offers++
	r.started = false
	d.Count, d.Stopping = r.offers, r.halted
	r.process(r.context(), r, d)
	return true
}

// starts reports whether the record's handler may be called, or has been: a transaction may be repeated, and so may a
// batch.
func (r *record) starts() bool {
	r.started = r.started || !closed(r.halted)
	return r.started
}

// rest has the record offered when it is due, unless nothing starts any more by then. It takes no place.
func (r *record) rest(due time.Time) {
	if !r.begin() {
		return
	}
	prevent := r.onHalt(r.end)
	after(r.halted, func() time.Duration { return time.Until(due) }, func() {
		if prevent() {
			defer r.end()
			r.places.add(r)
			r.places.fill()
		}
	})
}

// decided carries out the decision about the record. It waits for nothing.
func (r *record) decided(decision consumer.Decision) {
	r.places.leave()
	if decision.Action == consumer.Ack {
		r.of.settle(r)
		r.end()
		return
	}
	r.places.fill()
	r.carryOut(decision)
}

func (r *record) carryOut(decision consumer.Decision) {
	r.pool.Go(func() {
		defer r.end()
		if settled, delay := r.conclude(r.context(), decision); settled {
			r.of.settle(r)
		} else {
			r.rest(time.Now().Add(delay))
		}
	})
}
