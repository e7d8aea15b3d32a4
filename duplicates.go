package oncemill

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// duplicates counts duplicates that were answered with an outcome, and tells the store now and then. It delays nothing
// and is best effort: counts since then end with the process.
type duplicates struct {
	store  dedupstore.Inspector // nil: it does not count them
	window time.Duration

	mu      sync.Mutex
	seen    map[dedupstore.Key]dedupstore.Duplicates
	timer   *time.Timer
	telling sync.WaitGroup
}

const (
	// noteEvery is how long duplicates are collected.
	noteEvery = time.Second

	// mostNoted bounds the keys that are collected.
	mostNoted = 1000

	// noteTimeout bounds how long the store may take.
	noteTimeout = 5 * time.Second
)

// note counts a duplicate.
func (d *duplicates) note(key *dedupstore.Key) {
	if d.store == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	one, known := d.seen[*key]
	if !known && len(d.seen) >= mostNoted {
		return
	}
	if d.seen == nil {
		d.seen = map[dedupstore.Key]dedupstore.Duplicates{}
		d.telling.Add(1)
		d.timer = time.AfterFunc(noteEvery, func() {
			defer d.telling.Done()
			d.tell()
		})
	}
	d.seen[*key] = dedupstore.Duplicates{Key: *key, Count: one.Count + 1, Last: time.Now(), Retention: d.window}
}

// tell tells the store.
func (d *duplicates) tell() {
	d.mu.Lock()
	seen := d.seen
	d.seen = nil
	d.mu.Unlock()
	if len(seen) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
	defer cancel()
	_ = shielded(func() error { // it says nothing that anybody waits for
		return d.store.NoteDuplicates(ctx, slices.Collect(maps.Values(seen)))
	})
}

// close tells the store of what is left, and returns when the store has been told of everything before.
func (d *duplicates) close() {
	d.mu.Lock()
	if d.timer != nil && d.timer.Stop() {
		d.telling.Done()
	}
	d.mu.Unlock()
	d.tell()
	d.telling.Wait()
}
