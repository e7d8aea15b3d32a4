package pgwal

import (
	"context"
	"math/rand/v2"
	"time"
)

// A pace is a pause that doubles each time it is taken, from shortest up to longest.
type pace struct {
	shortest, longest time.Duration
	taken             int
}

func (p *pace) next() time.Duration {
	p.taken++
	return backoff(p.shortest, p.longest, p.taken)
}

func (p *pace) reset() { p.taken = 0 }

// backoff is the n-th pause, counted from 1.
func backoff(shortest, longest time.Duration, n int) time.Duration {
	if shift := n - 1; shift < 32 && shortest<<shift > 0 {
		return min(longest, shortest<<shift)
	}
	return longest
}

// jitter shortens a pause at random by up to a fifth.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/5+1) }

// sleep waits for d, and reports false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
