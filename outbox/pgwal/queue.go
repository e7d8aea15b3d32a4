package pgwal

import (
	"container/heap"
	"time"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// A row is a message to be published.
type row struct {
	number  int64 // in the table
	at      int64 // when it was written, in PostgreSQL's microseconds
	message producer.Message
	problem string // why it cannot be published; empty: it can
	txn     *txn   // nil: found in the table, not in the log

	failures, unknowns int       // attempts that were refused, and those without an answer
	due                time.Time // while it waits
	replays            int       // in the table: a result says nothing about a later copy
	acks               int       // of the session, at the last attempt without an answer
	missed             bool      // the table did not show it when its result was to be recorded
}

// outgoing is what the row publishes. It is as old as the clocks of the database and of this process say together; not
// known is the age of what was delayed or published before.
func (r *row) outgoing() outgoing.Message {
	m := outgoing.Message{Message: r.message, Unknowns: r.unknowns}
	if r.txn != nil {
		m.Age = max(0, time.Since(epoch.Add(time.Duration(r.at)*time.Microsecond)))
	}
	return m
}

// A queue holds messages until they are acknowledged or dead. Of each key only the first one is offered.
type queue struct {
	keys     map[string][]*row // with the one that is offered, being published, or waiting
	fresh    []*row            // offered: no attempt without an answer
	slow     []*row            // offered: no attempt, but to a topic that hangs
	suspects []*row            // offered: with one
	hung     pace.Hung         // topics
	together bool              // what is slow goes with what is fresh
	waiting  waiting
}

func (q *queue) add(r *row) {
	if key := r.message.Key; key != "" {
		q.keys[key] = append(q.keys[key], r)
		if len(q.keys[key]) > 1 {
			return
		}
	}
	q.offer(r)
}

func (q *queue) offer(r *row) {
	switch {
	case r.unknowns > 0:
		q.suspects = append(q.suspects, r)
	case q.hung.Has(r.message.Topic):
		q.slow = append(q.slow, r)
	default:
		q.fresh = append(q.fresh, r)
	}
}

// hang notes that a message to a topic got no answer: what else there is for it goes by calls of its own.
func (q *queue) hang(topic string) {
	if q.together || !q.hung.Note(topic) {
		return
	}
	fresh := q.fresh
	q.fresh = nil
	for _, r := range fresh {
		q.offer(r)
	}
}

// release lets the next message of the key go.
func (q *queue) release(r *row) {
	key := r.message.Key
	if key == "" {
		return
	}
	rest := q.keys[key][1:]
	if len(rest) == 0 {
		delete(q.keys, key)
		return
	}
	q.keys[key] = rest
	q.offer(rest[0])
}

// later offers a message again at a time. Its key waits with it.
func (q *queue) later(r *row, at time.Time) {
	r.due = at
	heap.Push(&q.waiting, r)
}

// wake offers what has waited long enough.
func (q *queue) wake(now time.Time) {
	for len(q.waiting) > 0 && !q.waiting[0].due.After(now) {
		q.offer(heap.Pop(&q.waiting).(*row))
	}
}

// take removes the first n of a list.
func take(list *[]*row, n int) []*row {
	taken := (*list)[:n:n]
	*list = (*list)[n:]
	return taken
}

// waiting is a heap by due.
type waiting []*row

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].due.Before(w[j].due) }
func (w waiting) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *waiting) Push(x any)        { *w = append(*w, x.(*row)) }
func (w *waiting) Pop() any {
	old := *w
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	return last
}
