package oncemill

import (
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// longRun is after what time of work the log names a run first. It does so again each time when the run has taken twice
// as long.
const longRun = time.Minute

// A work is what a handler is at, under a lease.
type work struct {
	begins bool          // when its context is made; else that is of something that is no handler
	began  time.Time     // zero: no handler is at work
	named  time.Duration // how long it had been at work when the log named it
	over   bool          // it has taken longer than Policy.MaxRun, and was told to end
}

// longRuns are runs that take long.
type longRuns struct {
	over   []canceler     // those that have just become longer than Policy.MaxRun
	runs   int            // that have been at work for longRun
	named  dedupstore.Key // the longest of those that the log names now; zero: it names none
	atWork time.Duration  // how long that has been at work
}

// add notes a run.
func (r *longRuns) add(l *lease, now time.Time, most time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.work
	took := now.Sub(w.began)
	if w.began.IsZero() || l.handler == nil {
		return
	}
	if most > 0 && took >= most && !w.over {
		w.over = true
		r.over = append(r.over, l.handler)
	}
	if took < longRun {
		return
	}
	r.runs++
	if took < 2*w.named {
		return
	}
	w.named = took
	if took > r.atWork {
		r.named, r.atWork = l.claim.Key, took
	}
}

// see ends the runs that have taken too long, and has the log name the others.
func (r *longRuns) see(g *Guard) {
	for _, handler := range r.over {
		handler.Cancel(ErrMaxRun)
	}
	key := r.named
	if r.atWork == 0 {
		return
	}
	g.log.Warn("oncemill: handlers have been at work for long: look for a call without a deadline, or set "+
		"Policy.MaxRun",
		"id", key.ID, "handler", key.Handler, "key", key.String(), "at_work", r.atWork.Round(time.Second),
		"runs", r.runs)
}

// handles notes that the handler is called now.
func (l *lease) handles() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work.began = time.Now()
}

// waits notes that the handler is not at work: it waits for a transaction.
func (l *lease) waits() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.work.began = time.Time{}
}

// overran reports whether the run was told to end because it took longer than Policy.MaxRun.
func (l *lease) overran() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.work.over
}

// oldest returns how long the longest runs of each handler have been at work.
func (h *heartbeat) oldest() map[telemetry.Handler]time.Duration {
	now, all := time.Now(), map[telemetry.Handler]time.Duration{}
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := h.first; l != nil; l = l.next {
		l.mu.Lock()
		began := l.work.began
		l.mu.Unlock()
		if !began.IsZero() {
			of := telemetry.Handler{Group: l.claim.Key.Group, Name: l.claim.Key.Handler}
			all[of] = max(all[of], now.Sub(began))
		}
	}
	return all
}
