package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// A barrier makes claims wait until replicas have them: WAIT follows them on their connection, because it waits for
// what its own connection wrote. The zero barrier does nothing.
type barrier struct {
	replicas int
	timeout  time.Duration
}

func (b barrier) on() bool { return b.replicas > 0 }

// outlast returns a context that ends after another one by as long as a claim that was sent before may take to be
// answered. It has been granted, and if too few replicas have it, it must be given back: else it counts as an attempt.
// Without a barrier, and without a deadline, it is the same context.
func (b barrier) outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	end, bounded := ctx.Deadline()
	if !b.on() || !bounded {
		return ctx, func() {}
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end.Add(b.timeout+stuckAfter))
}

// append puts WAIT at the end of a pipeline.
func (b barrier) append(ctx context.Context, pipe redis.Pipeliner) *redis.IntCmd {
	wait := redis.NewIntCmd(ctx, "wait", b.replicas, b.timeout.Milliseconds())
	_ = pipe.Process(ctx, wait) // only queues
	return wait
}

// releaseTimeout bounds how long the store tries to give back a claim that was not replicated. If that fails, its lease
// has to end.
const releaseTimeout = time.Second

// confirm gives back every run that too few replicas have, all at once, and refuses it. Only runs need that: what has
// to be published has been decided already. Their owners have settled then, and are never granted the key again: a late
// copy of the release must not meet a run of theirs. What cannot be given back ends with its lease, and counts as an
// attempt.
func (s *Store) confirm(ctx context.Context, results []dedupstore.ClaimResult, replicas []acknowledged) {
	var back []*operation
	for i, got := range replicas {
		a := results[i].Answer
		if !s.barrier().on() || a.Status != dedupstore.AcquiredRun || got.replicas >= s.config.Replicas {
			continue
		}
		why := cmp.Or(got.err, fmt.Errorf("%d replicas have it, want %d", got.replicas, s.config.Replicas))
		err := fmt.Errorf("redisstore: WAIT: %w: %w", dedupstore.ErrNotDurable, why)
		results[i] = dedupstore.ClaimResult{Err: err}
		back = append(back, s.releaseOperation(a.Claim, dedupstore.Release{Reason: err.Error()}, '2'))
	}
	if len(back) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	s.runMany(ctx, back, false)
	for _, op := range back {
		_ = s.done(ctx, op) // the lease ends in any case
	}
}

// ClaimWait implements [dedupstore.Waiter].
func (s *Store) ClaimWait() time.Duration {
	if !s.barrier().on() {
		return 0
	}
	return s.barrier().timeout
}

func (s *Store) barrier() barrier { return s.lanes.barrier }
