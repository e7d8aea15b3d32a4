package kit

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
)

// Lines are those that a guard has before its store, on which operations of many callers travel together.
type Lines struct {
	claims  batch.Queue[dedupstore.Request, dedupstore.ClaimResult]
	settles batch.Queue[dedupstore.Settling, error]
}

// NewLines returns the lines of a guard whose leases last so long.
func NewLines(store dedupstore.Store, lease time.Duration) *Lines {
	return &Lines{
		claims: batch.Queue[dedupstore.Request, dedupstore.ClaimResult]{
			Send: store.Claim, Timeout: lease / 6,
			Failed: func(err error) dedupstore.ClaimResult { return dedupstore.ClaimResult{Err: err} },
		},
		settles: batch.Queue[dedupstore.Settling, error]{
			Send: store.Settle, Timeout: lease / 6, Failed: func(err error) error { return err },
		},
	}
}

// Claim makes a claim.
func (l *Lines) Claim(ctx context.Context, r dedupstore.Request) *dedupstore.ClaimResult {
	return l.claims.Do(ctx, r)
}

// Settle settles a claim.
func (l *Lines) Settle(ctx context.Context, s dedupstore.Settling) *error {
	return l.settles.Do(ctx, s)
}

// Wait returns when nothing is under way.
func (l *Lines) Wait() {
	l.claims.Wait()
	l.settles.Wait()
}
