package pgwal

import (
	"context"
	"time"
)

// looks are what is looked at from time to time, one job at a time.
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
	sweepSize  = 5000
	sweepEvery = 10 // looks
	cleanSize  = 10_000
	restful    = 20 // a look takes at most one part in so many of the time
)

// A request says what to look at.
type request struct {
	exclude []int64 // rows that are in memory
	limit   int     // of rows that are due; zero: none
	bytes   int     // of their payloads
	unseen  unseen  // to be made due; empty: none
	sweep   bool
}

// A sight is what a look found.
type sight struct {
	rows   []*row
	full   bool // there is probably more
	unseen unseen
	swept  bool // unseen is new
	heavy  bool // finding rows that are due failed
	broken error
	faults []error
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
	ask := s.ask(now)
	s.start(func() func() {
		began := time.Now()
		found := s.r.see(working, ask)
		cost := time.Since(began)
		s.r.cleaner.Clean(working)
		if watch {
			found.broken = s.r.watch(working, s.facts)
		}
		return func() { s.seen(working, found, cost) }
	})
}

func (s *session) ask(now time.Time) request {
	l := &s.looks
	q := request{limit: min(l.finds, s.room()), bytes: s.r.limits.maxPendingBytes - s.bytes, exclude: []int64{}}
	if q.limit > 0 {
		for number, rest := range s.numbers {
			if rest {
				q.exclude = append(q.exclude, number)
			}
		}
	}
	switch {
	case l.unseen.after != 0 && s.progress.confirmed() >= l.unseen.after:
		q.unseen, l.unseen = l.unseen, unseen{}
	case l.unseen.after == 0 && !now.Before(l.sweepAt):
		q.sweep = true
	}
	return q
}

// see does what is asked.
func (r *Relay) see(ctx context.Context, q request) (found sight) {
	fault := func(err error) bool {
		if err != nil {
			found.faults = append(found.faults, err)
		}
		return err != nil
	}
	if len(q.unseen.numbers) > 0 {
		n, err := r.mark(ctx, q.unseen)
		if !fault(err) && n > 0 {
			r.log.InfoContext(ctx, "pgwal: found rows in the table that the log does not show", "rows", n)
			found.full = true
		}
	}
	var err error
	if q.limit > 0 {
		found.rows, err = r.rest(ctx, q.exclude, q.limit, q.bytes)
		bytes := 0
		for _, r := range found.rows {
			bytes += len(r.message.Payload)
		}
		found.heavy = fault(err)
		found.full = found.full || !found.heavy && (len(found.rows) == q.limit || bytes >= q.bytes)
	}
	if q.sweep {
		found.unseen, err = r.unseen(ctx, sweepSize)
		found.swept = !fault(err)
	}
	return found
}

// seen takes in what a look found.
func (s *session) seen(ctx context.Context, found sight, cost time.Duration) {
	l, now := &s.looks, time.Now()
	l.busy = false
	if found.broken != nil {
		s.broken = found.broken
	}
	for _, r := range found.rows {
		if _, there := s.numbers[r.number]; !there {
			s.admit(r)
		}
	}
	for _, err := range found.faults {
		s.fail(err)
		s.r.sayFault(ctx, err)
	}
	if found.heavy { // rows that take too long together would do so for ever
		l.finds = max(1, l.finds/2)
	} else {
		l.finds = min(restSize, l.finds+1+l.finds/8)
	}
	every := s.r.limits.pollInterval
	if found.swept {
		l.unseen, l.sweepAt = found.unseen, now.Add(sweepEvery*every)
		if len(found.unseen.numbers) >= sweepSize {
			l.sweepAt = now
		}
	}
	pause := max(every, restful*cost)
	switch {
	case len(found.faults) > 0: // what it cost was waiting
		pause = max(every, cost)
	case found.full && s.room() > 0:
		pause = min(cost, every)
	}
	l.at = now.Add(pause)
}

func (r *Relay) sayFault(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.log.WarnContext(ctx, "pgwal: looking at the table failed, will try again", "error",
			r.explain("look at the table", err))
	}
}
