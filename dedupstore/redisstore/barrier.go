package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

const (
	// afterwards is how long a claim is waited for when its context has ended, beside what it waits for replicas.
	afterwards = 500 * time.Millisecond

	// releaseTimeout bounds how long the store tries to give back a claim that was not replicated. If that fails, its
	// lease has to end.
	releaseTimeout = time.Second
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

// command is the WAIT that stands at the end of a pipeline.
func (b barrier) command(ctx context.Context) *redis.IntCmd {
	return redis.NewIntCmd(ctx, "wait", b.replicas, b.timeout.Milliseconds())
}

// acknowledged says how many replicas have what an operation wrote, if that was asked, or why that is not known.
type acknowledged struct {
	replicas int
	err      error
}

// acknowledgedBy reads the reply of WAIT.
func acknowledgedBy(client redis.UniversalClient, wait *redis.IntCmd) acknowledged {
	if _, several := client.(*redis.ClusterClient); several { // it has chosen a node for WAIT, perhaps not the claim's
		return acknowledged{err: errNoNode}
	}
	n, err := wait.Result()
	return acknowledged{int(n), err}
}

// ClaimWait implements [dedupstore.Waiter].
func (s *Store) ClaimWait() time.Duration {
	if !s.barrier.on() {
		return 0
	}
	return s.barrier.timeout
}

// lack is why a run is not granted that a claim got: too few replicas have it. Only runs need that: what has to be
// published has been decided already.
func (s *Store) lack(op *operation) error {
	got := op.acknowledged
	if !s.barrier.on() || got.replicas >= s.barrier.replicas {
		return nil
	}
	why := cmp.Or(got.err, fmt.Errorf("%d replicas have it, want %d", got.replicas, s.barrier.replicas))
	return fmt.Errorf("redisstore: WAIT: %w: %w", dedupstore.ErrNotDurable, why)
}

// giveBack gives back runs that too few replicas have. Their owners have settled then, and are never granted the key
// again: a late copy of the release must not meet a run of theirs. What cannot be given back ends with its lease, and
// counts as an attempt.
func (s *Store) giveBack(ctx context.Context, ops []*operation) {
	if len(ops) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	s.send(ctx, ops, barrier{})
}
