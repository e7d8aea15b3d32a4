package sqlitestore

import (
	"sync/atomic"
	"time"
)

// A claim that is contested looks every lookEvery whether the write lock is held by a transaction that lasts: a run of this
// store, or somebody else's for at least lasting.
const (
	lookEvery = 5 * time.Millisecond
	lasting   = 15 * time.Millisecond
)

// A lock is what a store knows of who has the write lock.
type lock struct {
	running atomic.Bool  // a handler's run of this store
	since   atomic.Int64 // when the store's writer was refused because of others, in microseconds; 0: it is not
}

// missed notes that another has the write lock.
func (l *lock) missed() { l.since.CompareAndSwap(0, clock()) }

// got notes that the store's writer has it, or does not want it any more.
func (l *lock) got() { l.since.Store(0) }

func (l *lock) lasts() bool {
	since := l.since.Load()
	return l.running.Load() || since != 0 && clock()-since >= micros(lasting)
}
