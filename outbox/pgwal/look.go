package pgwal

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/oncemill/oncemill/internal/pace"
)

// looks are what is looked at from time to time, one job at a time.
type looks struct {
	at      time.Time // of the next look
	busy    bool
	sweepAt time.Time
	cleanAt time.Time
	walAt   time.Time
	unseen  unseen
	cleans  int // rows to clean at once
	finds   int // rows that are due, to find at once
}

const (
	restSize   = 1000
	sweepSize  = 5000
	sweepEvery = 10 // looks
	cleanSize  = 1000
	cleanEvery = time.Minute
	walEvery   = 10 * time.Second
	restful    = 20 // a look takes at most one part in so many of the time
)

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
	other   bool // the server, or the table, is not the one that the log is read for
	faults  []error

	confirmed pglogrepl.LSN // as the server knows it
}

// look starts a look if it is time for one.
func (s *session) look(working context.Context, now time.Time) {
	l := &s.looks
	if l.busy || now.Before(l.at) {
		return
	}
	l.busy = true
	wal := !now.Before(l.walAt)
	if wal {
		l.walAt = now.Add(s.r.watching)
	}
	var ask request
	if !s.r.cfg.messages() {
		ask = s.ask(now)
	}
	s.start(func() func() {
		began := time.Now()
		found := s.r.see(working, ask)
		cost := time.Since(began)
		if wal {
			found.other = s.r.watch(working, s.facts)
		}
		return func() { s.seen(working, found, cost) }
	})
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

func (s *session) ask(now time.Time) request {
	l := &s.looks
	q := request{limit: min(l.finds, s.room()), bytes: s.r.cfg.MaxPendingBytes - s.bytes, exclude: []int64{}}
	if !now.Before(l.cleanAt) {
		q.clean = l.cleans
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
	found.confirmed, err = r.confirmed(ctx)
	fault(err)
	if q.limit > 0 {
		found.rows, err = r.rest(ctx, q.exclude, q.limit, q.bytes)
		found.heavy = fault(err)
		if !found.heavy && (len(found.rows) == q.limit || payloads(found.rows) >= q.bytes) {
			found.full = true
		}
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

// payloads is how many bytes the payloads of rows have.
func payloads(rows []*row) (bytes int) {
	for _, r := range rows {
		bytes += len(r.message.Payload)
	}
	return bytes
}

// seen takes in what a look found.
func (s *session) seen(ctx context.Context, found sight, cost time.Duration) {
	l, now := &s.looks, time.Now()
	l.busy = false
	s.other = s.other || found.other
	s.kept(found.confirmed)
	for _, r := range found.rows {
		if _, there := s.numbers[r.number]; !there {
			s.admit(r, false)
		}
	}
	for _, err := range found.faults {
		s.leave = s.leave || hasCode(err, codeCannotConnectNow)
		if ctx.Err() == nil {
			s.r.log.WarnContext(ctx, "pgwal: looking at the table failed, will try again", "error", s.r.explain("look at the table", err))
		}
	}
	switch {
	case found.slow: // rows that take too long together would do so for ever
		l.cleans = max(1, l.cleans/2)
	case found.unclean:
		l.cleans = min(cleanSize, l.cleans+1+l.cleans/8)
	}
	if found.heavy { // as with what is cleaned
		l.finds = max(1, l.finds/2)
	} else {
		l.finds = min(restSize, l.finds+1+l.finds/8)
	}
	if found.cleaned {
		l.cleanAt = now.Add(pace.Jitter(s.r.clearing))
	}
	if found.swept {
		l.unseen, l.sweepAt = found.unseen, now.Add(sweepEvery*s.r.cfg.PollInterval)
		if len(found.unseen.numbers) >= sweepSize {
			l.sweepAt = now
		}
	}
	pause := max(s.r.cfg.PollInterval, restful*cost)
	switch {
	case len(found.faults) > 0: // what it cost was waiting
		pause = max(s.r.cfg.PollInterval, cost)
	case found.full && s.room() > 0 || found.unclean: // no more may be published than cleaned
		pause = min(cost, s.r.cfg.PollInterval)
	}
	l.at = now.Add(pause)
}
