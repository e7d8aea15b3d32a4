package pgwal

import (
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// A rowID identifies a row, also against a later row with the same number.
type rowID struct {
	number int64 // in the table
	at     int64 // when it was written, in PostgreSQL's microseconds
}

// A row is a message to be published.
type row struct {
	rowID
	message producer.Message
	problem string        // why it cannot be published; empty: it can
	logged  bool          // the log showed it; else it was found in the table
	before  pglogrepl.LSN // logged: up to where everything was shown before its transaction

	failures, unknowns int       // attempts that were refused, and those without an answer
	due                time.Time // while it waits
	replays            int       // in the table: a result says nothing about a later copy
	acks               int       // of the session, at the last attempt without an answer
	missed             bool      // the table did not show it when its result was to be recorded
}

// epoch is where PostgreSQL's time begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (id rowID) written() time.Time { return epoch.Add(time.Duration(id.at) * time.Microsecond) }

// outgoing is what the row publishes. Its age comes from the clocks of the database and of this process. The age of a
// row that was delayed or published before is unknown.
func (r *row) outgoing() outgoing.Message {
	m := outgoing.Message{Message: r.message, Unknowns: r.unknowns}
	if r.logged {
		m.Age = max(0, time.Since(r.written()))
	}
	return m
}

// An outlet is messages that are offered, and the calls that publish them.
type outlet struct {
	rows        []*row
	most, batch int       // calls at once, messages in each
	calls       int       // at the moment
	at          time.Time // no further one before
	away        pace.Pace // between calls, while the broker acknowledges nothing
}

// A queue holds messages until they are acknowledged or dead. It offers only the first message of each key.
type queue struct {
	keys     map[string][]*row // with the one that is offered, being published, or waiting
	fresh    outlet            // no attempt without an answer
	slow     outlet            // no attempt, but to a topic that hangs
	suspects outlet            // with an attempt: they may have made the publisher fail or hang, and go one by one
	hung     pace.Hung         // topics
	together bool              // what is slow goes with what is fresh
	waiting  []*row
}

const (
	maxApart     = 32 // suspects are published side by side
	shortestAway = 50 * time.Millisecond
	longestAway  = time.Second
)

func newQueue(c Config) queue {
	batches := outlet{most: c.MaxInFlight, batch: c.BatchSize,
		away: pace.Pace{Shortest: shortestAway, Longest: longestAway}}
	return queue{keys: map[string][]*row{}, fresh: batches, slow: batches, suspects: outlet{most: maxApart, batch: 1},
		together: c.MaxInFlight == 1}
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
	to := &q.fresh
	switch {
	case r.unknowns > 0:
		to = &q.suspects
	case q.hung.Has(r.message.Topic):
		to = &q.slow
	}
	to.rows = append(to.rows, r)
}

// hang notes that a message to a topic got no answer: other messages to it go by separate calls.
func (q *queue) hang(topic string) {
	if q.together || !q.hung.Note(topic) {
		return
	}
	fresh := q.fresh.rows
	q.fresh.rows = nil
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

// wake offers again the messages that have waited long enough. The others wait on, and their keys with them.
func (q *queue) wake(now time.Time) {
	q.waiting = slices.DeleteFunc(q.waiting, func(r *row) bool {
		due := !r.due.After(now)
		if due {
			q.offer(r)
		}
		return due
	})
}
