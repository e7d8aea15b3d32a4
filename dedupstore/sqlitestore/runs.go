package sqlitestore

import (
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// runs are those that may have the write lock themselves: their heartbeats must not wait for it.
type runs struct {
	until sync.Map // of runID: when it is forgotten at the latest, time.Time
}

type runID struct {
	key   dedupstore.Key
	owner string
	fence uint64
}

// forever is for runs that leave.
var forever = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func idOf(c dedupstore.Claim) runID { return runID{c.Key, c.Owner, c.Fence} }

// enter notes a run until a time, or until it leaves. It forgets those whose time is over.
func (r *runs) enter(c dedupstore.Claim, until time.Time) {
	now := clock()
	for id, end := range r.until.Range {
		if end.(time.Time).Before(now) {
			r.until.Delete(id)
		}
	}
	r.until.Store(idOf(c), until)
}

func (r *runs) leave(c dedupstore.Claim) { r.until.Delete(idOf(c)) }

// twin reports whether another owner's run of a key is one of them.
func (r *runs) twin(key dedupstore.Key, owner string) bool {
	for id := range r.until.Range {
		if id := id.(runID); id.key == key && id.owner != owner {
			return true
		}
	}
	return false
}

func (r *runs) has(c dedupstore.Claim) bool {
	_, there := r.until.Load(idOf(c))
	return there
}
