package pgwal

import (
	"context"
	"time"
)

// Limits are those of a relay that a test changes. Zero: as they are.
type Limits struct {
	MaxPending, MaxPendingBytes                int
	PollInterval, CleanInterval, WatchInterval time.Duration
	StoreTimeout, StopTimeout                  time.Duration
	WarnWAL                                    int64
}

// Limit changes the limits of a relay.
func (r *Relay) Limit(l Limits) {
	to := &r.limits
	change(&to.maxPending, l.MaxPending)
	change(&to.maxPendingBytes, l.MaxPendingBytes)
	change(&to.pollInterval, l.PollInterval)
	change(&r.cleaner.Every, l.CleanInterval)
	change(&r.cleaner.Timeout, l.StoreTimeout)
	change(&to.watchInterval, l.WatchInterval)
	change(&to.storeTimeout, l.StoreTimeout)
	change(&to.stopTimeout, l.StopTimeout)
	change(&to.warnWAL, l.WarnWAL)
}

func change[T comparable](limit *T, to T) {
	var zero T
	if to != zero {
		*limit = to
	}
}

// Look says how many rows a look finds, and whether it takes it that there are more.
func (r *Relay) Look(ctx context.Context, limit, bytes int) (rows int, full bool) {
	found := r.see(ctx, request{exclude: []int64{}, limit: limit, bytes: bytes})
	return len(found.rows), found.full
}
