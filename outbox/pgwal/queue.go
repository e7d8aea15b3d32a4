package pgwal

import (
	"container/heap"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// A row is a message to be published.
type row struct {
	number  int64 // in the table; zero: it has no row there
	at      int64 // of a table: when it was written, in PostgreSQL's microseconds; of an Emitter: its place in the log
	message producer.Message
	problem string // why it cannot be published; empty: it can
	xid     uint32 // of a table: the transaction that wrote it; zero: found in the table
	txn     *txn   // nil: found in the table, not in the log

	failures, unknowns int       // attempts that were refused, and those without an answer
	due                time.Time // while it waits
	size               int       // of the payload

	replays int  // in the table: a result says nothing about a later copy
	parked  bool // it is a dead row of Config.Dead
	acks    int  // of the session, at the last attempt without an answer
	adopted bool // it is recorded, or about to be, as the table's: the log need not show it again
}

// An origin names what the log shows, so that it is known when it is shown again. A place in the log alone is not enough:
// another server that takes over may write something else there.
type origin struct {
	number, at int64
	id, topic  string
}

func (r *row) origin() origin { return origin{r.number, r.at, r.message.ID, r.message.Topic} }

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
		if q.keys == nil {
			q.keys = map[string][]*row{}
		}
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
	var fresh []*row
	for _, r := range q.fresh {
		if r.message.Topic == topic {
			q.slow = append(q.slow, r)
		} else {
			fresh = append(fresh, r)
		}
	}
	q.fresh = fresh
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

// wakeSuspects offers what waits without an answer: the broker has just answered for one of them.
func (q *queue) wakeSuspects() {
	var still waiting
	for _, r := range q.waiting {
		if r.unknowns > 0 {
			q.offer(r)
		} else {
			still = append(still, r)
		}
	}
	heap.Init(&still)
	q.waiting = still
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
