package redisstore

import (
	"context"
	"errors"
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
	Got, Want int // replicas
}

// Unwrap returns [dedupstore.ErrNotDurable].
func (e *ReplicationError) Unwrap() error { return dedupstore.ErrNotDurable }

func (e *ReplicationError) Error() string {
	return fmt.Sprintf("redisstore: %d replicas have the claim, want %d", e.Got, e.Want)
}

// releaseTimeout bounds how long a claim that was not replicated is tried to be given back. If that fails, its lease
// has to end.
const releaseTimeout = time.Second

// confirm returns the answer if enough replicas have the claim; else it gives the claim back. Only runs need that: what
// is to be published has been decided already.
func (s *Store) confirm(ctx context.Context, a dedupstore.Answer, replicas int) (dedupstore.Answer, error) {
	if !s.barrier().on() || a.Status != dedupstore.AcquiredRun || replicas >= s.config.Replicas {
		return a, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := &ReplicationError{Got: max(0, replicas), Want: s.config.Replicas}
	release := s.Settle(ctx, a.Claim, dedupstore.Release{Uncounted: true, Reason: err.Error()})
	return dedupstore.Answer{}, errors.Join(err, release)
}

func (s *Store) barrier() barrier { return barrier{s.config.Replicas, s.config.ReplicaTimeout} }
