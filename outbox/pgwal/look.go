package pgwal

import (
	"context"
	"time"
)

// looks are the periodic jobs that look at the server, one at a time.
type looks struct {
	at      time.Time // of the next look
	busy    bool
	sweepAt time.Time
	watchAt time.Time
	unseen  unseen
	finds   int // rows that are due, to find at once
}

const (
	restSize   = 1000
	sweepSize  = 12_000 // more than are in memory, which may all be passed over
	sweepEvery = 10     // looks
	cleanSize  = 10_000
	restful    = 20 // looks take at most one twentieth of the time
)

// A request says what to look at.
type request struct {
	exclude []int64 // rows that are in memory
	limit   int     // of rows that are due; zero: none
	bytes   int     // of their payloads
	mark    unseen  // to be made due; empty: none
	sweep   bool
}

// A sight is what a look found.
type sight struct {
	rows   []*row
	full   bool // there is probably more
	unseen unseen
	err    error // of the table
	broken error // of the slot
}

// look starts a look if it is time for one.
func (s *session) look(working context.Context, now time.Time) {
	l := &s.looks
	if l.busy || now.Before(l.at) {
		return
	}
	l.busy = true
	watch := !now.Before(l.watchAt)
	if watch {
		l.watchAt = now.Add(s.r.limits.watchInterval)
	}
	ask := request{limit: min(l.finds, s.room()), bytes: s.r.limits.maxPendingBytes - s.bytes, exclude: []int64{}}
	for _, r := range s.rows {
		if !r.logged {
			ask.exclude = append(ask.exclude, r.number)
		}
	}
	if l.unseen.after != 0 && s.shown >= l.unseen.after {
		ask.mark, l.unseen = s.notShown(l.unseen), unseen{}
	} else if l.unseen.after == 0 {
		ask.sweep = !now.Before(l.sweepAt)
	}
	s.start(func() func() {
		began := time.Now()
		found := s.r.see(working, ask)
		cost := time.Since(began)
		s.r.cleaner.Clean(working)
		if watch {
			found.broken = s.r.watch(working, s.facts)
		}
		return func() { s.seen(working, ask, found, cost) }
	})
}

// notShown leaves out the rows that the log has shown and that are in memory.
func (s *session) notShown(u unseen) (left unseen) {
	for i, number := range u.numbers {
		if s.rows[rowID{number, micros(u.written[i])}] == nil {
			left.numbers, left.written = append(left.numbers, number), append(left.written, u.written[i])
		}
	}
	return left
}

// see does what is asked.
func (r *Relay) see(ctx context.Context, ask request) (found sight) {
	marked := 0
	if len(ask.mark.numbers) > 0 {
		if marked, found.err = r.mark(ctx, ask.mark); marked > 0 {
			r.log.InfoContext(ctx, "pgwal: found rows in the table that the log does not show", "rows", marked)
		}
	}
	if ask.limit > 0 && found.err == nil {
		found.rows, found.err = r.rest(ctx, ask.exclude, ask.limit, ask.bytes)
		bytes := 0
		for _, r := range found.rows {
			bytes += len(r.message.Payload)
		}
		found.full = marked > 0 || len(found.rows) == ask.limit || bytes >= ask.bytes
	}
	if ask.sweep && found.err == nil {
		found.unseen, found.err = r.unseen(ctx, sweepSize)
	}
	return found
}

// seen takes in what a look found.
func (s *session) seen(ctx context.Context, ask request, found sight, cost time.Duration) {
	l, now, every := &s.looks, time.Now(), s.r.limits.pollInterval
	l.busy = false
	if found.broken != nil {
		s.broken = found.broken
	}
	for _, r := range found.rows {
		if s.rows[r.rowID] == nil {
			s.admit(r)
		}
	}
	if found.err != nil {
		s.fail(found.err)
		s.r.sayFault(ctx, found.err)
		l.finds = max(1, l.finds/2)      // rows that take too long together would do so for ever
		l.at = now.Add(max(every, cost)) // what it cost was waiting
		return
	}
	l.finds = min(restSize, l.finds+1+l.finds/8)
	if ask.sweep {
		l.unseen, l.sweepAt = found.unseen, now.Add(sweepEvery*every)
		if len(found.unseen.numbers) >= sweepSize {
			l.sweepAt = now
		}
	}
	pause := max(every, restful*cost)
	if found.full && s.room() > 0 {
		pause = min(cost, every)
	}
	l.at = now.Add(pause)
}

func (r *Relay) sayFault(ctx context.Context, err error) {
	r.fault(ctx, "pgwal: looking at the table failed, will try again", r.explain("look at the table", err))
}
