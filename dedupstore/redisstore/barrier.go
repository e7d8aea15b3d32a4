package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
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
	return context.WithDeadline(context.WithoutCancel(ctx), end.Add(b.timeout+afterwards))
}

// append puts WAIT at the end of a pipeline.
func (b barrier) append(ctx context.Context, pipe redis.Pipeliner) *redis.IntCmd {
	wait := redis.NewIntCmd(ctx, "wait", b.replicas, b.timeout.Milliseconds())
	_ = pipe.Process(ctx, wait) // only queues
	return wait
}

// ClaimWait implements [dedupstore.Waiter].
func (s *Store) ClaimWait() time.Duration {
	if !s.barrier.on() {
		return 0
	}
	return s.barrier.timeout
}
