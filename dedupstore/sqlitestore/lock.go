package sqlitestore

import (
	"sync/atomic"
	"time"
)

// A claim that is contested looks every lookEvery whether the write lock is held by a transaction that lasts, and is not one
// of this store, which would know whose key it is.
const (
	lookEvery   = 5 * time.Millisecond
	lasting     = 15 * time.Millisecond
	mostLasting = time.Second
)

// A lock is what a store knows of who has the write lock.
type lock struct {
	since atomic.Int64 // when the store's writer was refused because of others, in microseconds; 0: it is not
}

// missed notes that another has the write lock.
func (l *lock) missed() { l.since.CompareAndSwap(0, clock()) }

// got notes that the store's writer has it, or does not want it any more.
func (l *lock) got() { l.since.Store(0) }

// lasts reports whether the store's writer has been refused for a time.
func (l *lock) lasts(patience time.Duration) bool {
	since := l.since.Load()
	return since != 0 && clock()-since >= micros(patience)
}

// patience is how long a claim waits for the write lock before it takes who has it for the holder of its key. It grows with
// the time since the lease ended: a handler that is a little late is likely, one that is very late is not, and a claim whose
// holder is dead has to get past handlers of other processes that follow each other closely.
func patience(overdue time.Duration) time.Duration {
	return min(max(overdue/4, lasting), mostLasting)
}
