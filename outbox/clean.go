package outbox

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/outgoing"
)

// newCleaner returns what cleans between batches of work. After each batch of its loop, beside which the followers may
// publish as many, it removes more than these, so that cleaning keeps up with publishing. It removes less when the
// store is slow: nothing is published meanwhile.
func (r *Relay) newCleaner() *outgoing.Cleaner {
	c := &outgoing.Cleaner{
		Remove: r.store.Clean, Age: r.cfg.Retention, Every: outgoing.CleanEvery,
		Rows: (2 + followers) * r.cfg.BatchSize, Timeout: r.cfg.storeTimeout(),
		Fault: func(ctx context.Context, err error) { r.fault(ctx, "outbox: cleaning failed", err) },
	}
	if r.cfg.Retention != DeleteAtOnce { // else only rows that another config kept are left
		c.Every = min(c.Every, max(c.Age, time.Second))
	}
	return c
}
