package pgwal

import (
	"context"
	"time"
)

// WaitForServer says how long the server may say nothing at first.
func (r *Relay) WaitForServer(d time.Duration) { r.silence = d }

// CleanEvery is how often a relay of a test cleans.
func (r *Relay) CleanEvery(d time.Duration) { r.clearing = d }

// WatchEvery is how often a relay of a test looks at its slot.
func (r *Relay) WatchEvery(d time.Duration) { r.watching = d }

// Look says how many rows a look finds, and whether it takes it that there are more.
func (r *Relay) Look(ctx context.Context, limit, bytes int) (rows int, full bool) {
	found := r.see(ctx, request{exclude: []int64{}, limit: limit, bytes: bytes})
	return len(found.rows), found.full
}
