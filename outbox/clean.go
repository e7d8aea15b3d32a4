package outbox

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

const (
	cleanBatch = 1000 // at least; with large batches as many as two of them, so that no more is published than cleaned
	cleanEvery = time.Minute
)

// A cleaner removes published rows whose retention is over, a bounded batch at a time, between batches of work.
type cleaner struct {
	relay *Relay
	age   time.Duration
	every time.Duration
	next  time.Time
}

func (r *Relay) newCleaner() *cleaner {
	c := &cleaner{relay: r, every: cleanEvery, next: time.Now()}
	if r.cfg.Retention != DeleteAtOnce { // else age 0: rows that were kept under another config go too
		c.age = r.cfg.Retention
		c.every = min(cleanEvery, max(c.age, time.Second))
	}
	return c
}

// clean does the next step of the work if it is time.
func (c *cleaner) clean(ctx context.Context) {
	if time.Now().Before(c.next) || ctx.Err() != nil {
		return
	}
	c.next = time.Now().Add(pace.Jitter(c.every))
	bounded, cancel := context.WithTimeout(ctx, c.relay.cfg.StoreTimeout)
	defer cancel()
	limit := max(cleanBatch, 2*c.relay.cfg.BatchSize)
	removed, err := c.relay.store.Clean(bounded, c.age, limit)
	switch {
	case err != nil:
		c.relay.fault(ctx, "cleaning failed", err)
	case removed == limit:
		c.next = time.Now() // there is probably more
	}
}
