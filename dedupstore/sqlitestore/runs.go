package sqlitestore

import (
	"math"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

// runs are those that may have the write lock themselves: their heartbeats must not wait for it.
type runs struct {
	mu    sync.Mutex
	until map[runID]int64 // when it is forgotten at the latest
}

type runID struct {
	key   dedupstore.Key
	owner string
	fence uint64
}

// forever is for runs that leave.
const forever = math.MaxInt64

func idOf(c dedupstore.Claim) runID { return runID{c.Key, c.Owner, c.Fence} }

// enter notes a run until a time, or until it leaves. It forgets those whose time is over.
func (r *runs) enter(c dedupstore.Claim, until int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[runID]int64{}
	}
	now := clock()
	for id, end := range r.until {
		if end < now {
			delete(r.until, id)
		}
	}
	r.until[idOf(c)] = until
}

func (r *runs) leave(c dedupstore.Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.until, idOf(c))
}

// twin reports whether another owner's run of a key is one of them.
func (r *runs) twin(key dedupstore.Key, owner string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.until {
		if id.key == key && id.owner != owner {
			return true
		}
	}
	return false
}

func (r *runs) has(c dedupstore.Claim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, there := r.until[idOf(c)]
	return there
}
