package pgwal

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

// looks are what is looked at from time to time, one job at a time.
type looks struct {
	at      time.Time // of the next look
	busy    bool
	sweepAt time.Time
	cleanAt time.Time
	watchAt time.Time
	unseen  unseen
	cleans  portion
	finds   portion
}

const (
	restSize   = 1000
	sweepSize  = 5000
	sweepEvery = 10 // looks
	cleanSize  = 1000
	restful    = 20 // a look takes at most one part in so many of the time
)

// A portion is how many rows are worked on at once: half as many after an error, as rows that take too long together would
// do so for ever, and then ever more again.
type portion struct{ now, most int }

func (p *portion) adapt(failed bool) {
	if failed {
		p.now = max(1, p.now/2)
	} else {
		p.now = min(p.most, p.now+1+p.now/8)
	}
}

// A request says what to look at.
type request struct {
	exclude []int64 // rows that are in memory
	limit   int     // of rows that are due; zero: none
	bytes   int     // of their payloads
	unseen  unseen  // to be made due; empty: none
	sweep   bool
	clean   int // rows whose retention is over; zero: none
}

// A sight is what a look found.
type sight struct {
	rows    []*row
	full    bool // there is probably more
	unseen  unseen
	swept   bool // unseen is new
	cleaned bool // as far as is due now
	unclean bool // there is more to clean
	slow    bool // cleaning failed
	heavy   bool // finding rows that are due failed
	broken  error
	faults  []error
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
		if watch {
			found.broken = s.r.watch(working, s.facts)
		}
		return func() { s.seen(working, found, cost) }
	})
}

func (s *session) ask(now time.Time) request {
	l := &s.looks
	q := request{limit: min(l.finds.now, s.room()), bytes: s.r.limits.maxPendingBytes - s.bytes, exclude: []int64{}}
	if !now.Before(l.cleanAt) {
		q.clean = l.cleans.now
	}
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
	if q.clean > 0 {
		done, more, err := r.clean(ctx, q.clean)
		found.unclean = more
		found.slow = fault(err)
		found.cleaned = found.slow || done
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
		if ctx.Err() == nil {
			s.r.log.WarnContext(ctx, "pgwal: looking at the table failed, will try again",
				"error", s.r.explain("look at the table", err))
		}
	}
	if found.slow || found.unclean {
		l.cleans.adapt(found.slow)
	}
	l.finds.adapt(found.heavy)
	if found.cleaned {
		l.cleanAt = now.Add(pace.Jitter(s.r.limits.cleanInterval))
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
	case found.full && s.room() > 0 || found.unclean: // no more may be published than cleaned
		pause = min(cost, every)
	}
	l.at = now.Add(pause)
}
