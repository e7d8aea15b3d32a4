package sqlitestore

import (
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

// A phase is how far a run in a transaction is.
type phase int

const (
	outsideTx  phase = iota
	entered          // it waits for the write lock
	holding          // its transaction has the write lock: nobody can change its record
	committing       // as holding, but its outcome may be visible: twins look
	joined           // its handler has settled it in a transaction of its own, which may or may not have ended
)

// A txRun is a run in a transaction of this store, or in one that joined.
type txRun struct {
	claim dedupstore.Claim
	phase phase
	until int64  // the end of the lease, as extended in memory
	rec   record // while holding
}

// runs are those in transactions, by key.
type runs struct {
	mu    sync.Mutex
	byKey map[dedupstore.Key]*txRun
}

// enter notes a run that has a claim.
func (r *runs) enter(c dedupstore.Claim, p phase, until int64) *txRun {
	run := &txRun{claim: c, phase: p, until: until}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey == nil {
		r.byKey = map[dedupstore.Key]*txRun{}
	}
	if p == joined { // those that never settle are forgotten by the next
		for key, other := range r.byKey {
			if now := clock(); other.phase == joined && other.until < now {
				delete(r.byKey, key)
			}
		}
	}
	if old := r.byKey[c.Key]; old == nil || old.claim.Fence <= c.Fence { // a zombie does not displace who took over
		r.byKey[c.Key] = run
	}
	return run
}

// hold notes that a run has the write lock, and what its record says.
func (r *runs) hold(run *txRun, rec record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run.phase, run.rec, run.until = holding, rec, max(run.until, rec.lease)
	r.byKey[run.claim.Key] = run // its record says so
}

// commits notes that a run is about to commit: from now on what it knows of its record may be out of date.
func (r *runs) commits(run *txRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run.phase = committing
}

// let notes that a run has the write lock no more.
func (r *runs) let(run *txRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run.phase, run.rec = entered, record{}
}

func (r *runs) leave(run *txRun) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byKey[run.claim.Key] == run {
		delete(r.byKey, run.claim.Key)
	}
}

// forget forgets a run that joined.
func (r *runs) forget(c dedupstore.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := r.byKey[c.Key]; run.of(c) && run.phase == joined {
		delete(r.byKey, c.Key)
	}
}

// phase returns how far the claim's run is.
func (r *runs) phase(c dedupstore.Claim) phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := r.byKey[c.Key]; run.of(c) {
		return run.phase
	}
	return outsideTx
}

// extend extends a lease in memory, and returns how far the claim's run is.
func (r *runs) extend(c dedupstore.Claim, until int64) phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.byKey[c.Key]
	if !run.of(c) {
		return outsideTx
	}
	run.until = until
	return run.phase
}

func (run *txRun) of(c dedupstore.Claim) bool {
	return run != nil && run.claim.Owner == c.Owner && run.claim.Fence == c.Fence
}

// twin answers a claim of a key whose record nobody can change now, because a run of another owner has the write lock.
func (r *runs) twin(key string, req dedupstore.Request, now int64) (a dedupstore.Answer, held bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run := r.byKey[req.Key]
	if run == nil || run.phase != holding || run.claim.Owner == req.Owner {
		return a, false
	}
	rec := run.rec
	rec.key = key
	rec.lease = max(run.until, now+micros(contestedWait))
	a, changed := rec.claim(req, now)
	return a, !changed
}
