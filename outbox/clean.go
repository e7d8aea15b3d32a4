package outbox

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

const (
	cleanBatch = 1000
	cleanEvery = time.Minute
)

// A cleaner removes published rows whose retention is over, a bounded batch at a time, between batches of work: after each
// one at least as many rows as two of them have, so that no more is published than cleaned. When the store is slow it is
// less, because nothing is published meanwhile: it begins nothing new after the time that an operation of it may take.
type cleaner struct {
	relay *Relay
	age   time.Duration
	every time.Duration
	next  time.Time
	most  int // rows at once
}

func (r *Relay) newCleaner() *cleaner {
	c := &cleaner{relay: r, every: cleanEvery, next: time.Now(), most: cleanBatch}
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
	limit := time.Now().Add(c.relay.cfg.storeTimeout())
	for rows := 0; rows < 2*c.relay.cfg.BatchSize && time.Now().Before(limit); {
		bounded, cancel := context.WithTimeout(ctx, c.relay.cfg.storeTimeout())
		removed, err := c.relay.store.Clean(bounded, c.age, c.most)
		cancel()
		if err != nil {
			c.relay.fault(ctx, "outbox: cleaning failed", err)
			c.most = max(1, c.most/2) // rows that take too long together would do so for ever
			return
		}
		if removed < c.most {
			return
		}
		rows += removed
		c.most = min(cleanBatch, c.most+1+c.most/8)
	}
	c.next = time.Now() // there is probably more
}
