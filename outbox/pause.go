package outbox

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

// outlive returns a context that ends after limit, or grace after ctx ended, whichever comes first. The caller must
// call its second result.
func outlive(ctx context.Context, limit, grace time.Duration) (outlived context.Context, release func()) {
	outlived, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		if sleep(outlived, grace) {
			cancel()
		}
	})
	return outlived, func() {
		cancel()
		if !stop() {
			<-ended
		}
	}
}
