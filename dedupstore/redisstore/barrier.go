package redisstore

import (
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

// outlast returns a context that ends after another one by as long as a claim that was sent before may take to be answered. It has
// been granted, and if too few replicas have it, it must be given back: else it counts as an attempt. Without a barrier, and
// without a deadline, it is the same context.
func (b barrier) outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	end, bounded := ctx.Deadline()
	if !b.on() || !bounded {
		return ctx, func() {}
	}
	return context.WithDeadline(context.WithoutCancel(ctx), end.Add(b.timeout+stuckAfter))
}

// append puts WAIT at the end of a pipeline.
func (b barrier) append(ctx context.Context, pipe redis.Pipeliner) *waitReply {
	if !b.on() {
		return nil
	}
	wait := redis.NewIntCmd(ctx, "wait", b.replicas, b.timeout.Milliseconds())
	_ = pipe.Process(ctx, wait) // only queues
	return &waitReply{wait}
}

type waitReply struct{ cmd *redis.IntCmd }

// replicas is how many replicas have everything that the pipeline wrote.
func (w *waitReply) replicas() (int, error) {
	n, err := w.cmd.Result()
	if err != nil {
		return 0, fmt.Errorf("WAIT: %w", err)
	}
	return int(n), nil
}

// ReplicationError says that fewer replicas than Config.Replicas acknowledged a claim in Config.ReplicaTimeout. The
// claim was given back, without counting an attempt: nobody may run on it. Look at the replicas if it stays.
type ReplicationError struct {
	Got, Want int   // replicas
	Err       error // why the server refused to wait for them; nil: it did not
}

// Unwrap returns [dedupstore.ErrNotDurable].
func (e *ReplicationError) Unwrap() error { return dedupstore.ErrNotDurable }

func (e *ReplicationError) Error() string {
	if e.Err != nil {
		return "redisstore: replicas cannot be waited for: " + e.Err.Error()
	}
	return fmt.Sprintf("redisstore: %d replicas have the claim, want %d", e.Got, e.Want)
}

// releaseTimeout bounds how long a claim that was not replicated is tried to be given back. If that fails, its lease
// has to end.
const releaseTimeout = time.Second

// confirmed tells whether enough replicas have the claim. Only runs need that: what is to be published has been decided
// already. Claims that failed are no runs.
func (s *Store) confirmed(a *dedupstore.Answer, replicas int) bool {
	return !s.barrier().on() || a.Status != dedupstore.AcquiredRun || replicas >= s.config.Replicas
}

// confirm sees to it that every run that too few replicas have is given back, all at once, and refused. Their owners have
// settled then, and are never granted the key again: a copy of the release that comes late must not meet a run of theirs.
// What cannot be given back ends with its lease, and counts as an attempt.
func (s *Store) confirm(ctx context.Context, results []dedupstore.ClaimResult, replicas []int) {
	var back []*operation
	for i := range results {
		a := results[i].Answer
		if s.confirmed(&a, replicas[i]) {
			continue
		}
		err := &ReplicationError{Got: max(0, replicas[i]), Want: s.config.Replicas, Err: results[i].Err}
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

// ClaimWait implements [dedupstore.Waiter]: it is Config.ReplicaTimeout, with Config.Replicas.
func (s *Store) ClaimWait() time.Duration {
	if !s.barrier().on() {
		return 0
	}
	return s.config.ReplicaTimeout
}

func (s *Store) barrier() barrier { return barrier{s.config.Replicas, s.config.ReplicaTimeout} }
