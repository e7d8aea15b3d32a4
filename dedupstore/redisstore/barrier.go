package redisstore

import (
	"context"
	"errors"
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

// outlast returns a context that ends later than another one, by as long as a claim that was sent before may take to be
// answered. Such a claim is granted, and if too few replicas have it, it must be given back, or it counts as an
// attempt. Without a barrier, and without a deadline, it is the same context.
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

// lack says why the runs of a pipeline are not granted: too few replicas have them. Only runs need that: a publish step
// has been decided already.
func (b barrier) lack(client redis.UniversalClient, wait *redis.IntCmd) error {
	replicas, why := wait.Result()
	if _, several := client.(*redis.ClusterClient); several { // it has chosen a node for WAIT, perhaps not the claim's
		why = errors.New("the layout of the cluster was not known")
	} else if why == nil && int(replicas) < b.replicas {
		why = fmt.Errorf("%d replicas have it, want %d", replicas, b.replicas)
	}
	if why == nil {
		return nil
	}
	return fmt.Errorf("redisstore: WAIT: %w: %w", dedupstore.ErrNotDurable, why)
}

// ClaimWait implements [dedupstore.Waiter].
func (s *Store) ClaimWait() time.Duration {
	if !s.barrier.on() {
		return 0
	}
	return s.barrier.timeout
}

// giveBack gives back runs that too few replicas have. Their owners have settled then, and never get the key again: a
// late copy of the release must not meet a run of theirs. A claim that cannot be given back ends with its lease and
// counts as an attempt.
func (s *Store) giveBack(ctx context.Context, ops []*operation) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	s.send(ctx, ops, barrier{})
}
