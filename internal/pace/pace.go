// Package pace has the pauses of loops that try again.
package pace

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Pace is a pause that doubles each time it is taken, from Shortest up to Longest. It is for one goroutine.
type Pace struct {
	Shortest, Longest time.Duration
	taken             int
}

// Next returns the pause to take now.
func (p *Pace) Next() time.Duration {
	p.taken++
	return Backoff(p.Shortest, p.Longest, p.taken)
}

// Reset begins again with the shortest.
func (p *Pace) Reset() { p.taken = 0 }

// Backoff is the n-th pause, counted from 1.
func Backoff(shortest, longest time.Duration, n int) time.Duration {
	if shift := n - 1; shortest <= longest>>shift {
		return shortest << shift
	}
	return longest
}

// Draw returns a duration of at least zero and below d, at random, for the work that has the context. All jitter comes
// from it, so that a simulation can put draws of its own in its place before anything runs.
var Draw = func(_ context.Context, d time.Duration) time.Duration { return rand.N(d) }

// Jitter shortens a pause at random by up to a fifth.
func Jitter(d time.Duration) time.Duration { return d - Draw(context.Background(), d/5+1) }

// JitterOf is Jitter for the work that has the context.
func JitterOf(ctx context.Context, d time.Duration) time.Duration { return d - Draw(ctx, d/5+1) }

// Sleep waits for d, and reports false if ctx ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
