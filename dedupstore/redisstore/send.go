package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxBatch is how many operations a pipeline has at most.
	maxBatch = 256

	// maxShared is how large an operation may be to travel with others, in bytes: a larger one would hold them up, and
	// a server that refuses it closes the connection.
	maxShared = 64 << 10

	// afterwards is how long a claim is waited for when its context has ended, beside what it waits for replicas.
	afterwards = 500 * time.Millisecond
)

// send runs operations, claims or others, and leaves in each its reply or why there is none. It reports false if the
// context ended before: then the operations are not the caller's any more.
func (s *Store) send(ctx context.Context, ops []*operation, claims bool) bool {
	if len(ops) == 0 {
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	var b barrier
	if claims {
		b = s.barrier
	}
	ctx, cancel := b.outlast(ctx)
	defer cancel()
	if !s.deaf {
		s.waves(ctx, ops, b)
		return true
	}
	sent := make(chan struct{})
	s.background.start(func() { defer close(sent); s.waves(ctx, ops, b) })
	select {
	case <-sent:
		return true
	case <-ctx.Done():
		s.lookAnew(ctx.Err()) // the client may still be trying to reach a node that is gone
		return false
	}
}

// waves runs operations in pipelines that follow each other. Two on the same record are never in one wave: a server
// may answer pipelines in another order than they were sent in.
func (s *Store) waves(ctx context.Context, ops []*operation, b barrier) {
	for len(ops) > 0 {
		wave, later := ops, ops[:0:0]
		if len(ops) > 1 {
			wave = make([]*operation, 0, len(ops))
			names := make(map[string]bool, len(ops))
			for _, op := range ops {
				if names[op.name] {
					later = append(later, op)
				} else {
					names[op.name] = true
					wave = append(wave, op)
				}
			}
		}
		s.wave(ctx, wave, b)
		ops = later
	}
}

// wave runs operations on different records: small ones together, large ones each alone.
func (s *Store) wave(ctx context.Context, ops []*operation, b barrier) {
	if !b.on() || s.cluster == nil {
		s.chunks(ctx, s.rdb, ops, b)
		return
	}
	nodes := map[redis.UniversalClient][]*operation{} // WAIT has no key to find the node by
	for _, op := range ops {
		var client redis.UniversalClient = s.cluster
		if node, err := s.cluster.MasterForKey(ctx, op.name); err == nil { // else the client says what is wrong
			client = node
		}
		nodes[client] = append(nodes[client], op)
	}
	var group sync.WaitGroup
	for client, ops := range nodes {
		group.Go(func() { s.chunks(ctx, client, ops, b) })
	}
	group.Wait()
}

// chunks runs operations in pipelines of a bounded size.
func (s *Store) chunks(ctx context.Context, client redis.UniversalClient, ops []*operation, b barrier) {
	var large []*operation
	chunk := ops
	if len(ops) > 1 {
		chunk = make([]*operation, 0, min(maxBatch, len(ops)))
		for _, op := range ops {
			if op.size > maxShared {
				large = append(large, op)
				continue
			}
			if len(chunk) == maxBatch {
				s.exchange(ctx, client, chunk, b)
				chunk = chunk[:0]
			}
			chunk = append(chunk, op)
		}
	}
	if len(chunk) > 0 {
		s.exchange(ctx, client, chunk, b)
	}
	for _, op := range large {
		s.exchange(ctx, client, []*operation{op}, b)
	}
}

// exchange sends operations in one pipeline, and again with their source those whose script the server does not know. A
// panic in a hook of the client is their error.
func (s *Store) exchange(ctx context.Context, client redis.UniversalClient, ops []*operation, b barrier) {
	defer func() {
		if p := recover(); p != nil {
			for _, op := range ops {
				op.err = fmt.Errorf("%w: %v", errPanic, p)
			}
		}
	}()
	s.pipeline(ctx, client, ops, b, false)
	var again []*operation
	for _, op := range ops {
		switch {
		case op.err == nil || op.err == redis.Nil: //nolint:errorlint // never wrapped
			s.loaded.Store(true)
		case redis.HasErrorPrefix(op.err, "NOSCRIPT"):
			again = append(again, op)
		default:
			s.lookAnew(op.err)
		}
	}
	if len(again) > 0 {
		s.pipeline(ctx, client, again, b, true)
	}
}

func (s *Store) pipeline(
	ctx context.Context, client redis.UniversalClient, ops []*operation, b barrier, source bool,
) {
	sent := time.Now()
	defer func() { s.learn(ops, sent) }()
	if len(ops) == 1 && !b.on() {
		cmd := ops[0].command(ctx, source)
		_ = client.Process(ctx, cmd) // the command has the error
		ops[0].reply, ops[0].err = cmd.Result()
		return
	}
	pipe := client.Pipeline()
	queue := make([]redis.Cmder, len(ops))
	for i, op := range ops {
		queue[i] = op.command(ctx, source)
	}
	_ = pipe.BatchProcess(ctx, queue...) // only queues, all at once: one by one, the queue is copied again and again
	var wait *redis.IntCmd
	if b.on() {
		wait = b.append(ctx, pipe)
	}
	_, failed := pipe.Exec(ctx)
	_, several := client.(*redis.ClusterClient)
	for _, op := range ops {
		op.reply, op.err = op.cmd.Result()
		if op.err == nil && op.reply == "" {
			op.err = unsaid(failed)
		}
		switch {
		case wait == nil || op.err != nil && !errors.Is(op.err, redis.Nil):
		case several: // the client has chosen a node for WAIT, which may be another one than the claim's
			op.acknowledged.err = errNoNode
		default:
			n, err := wait.Result()
			op.acknowledged = acknowledged{int(n), err}
		}
	}
}

// unsaid is the error of commands that have neither a reply nor an error. Each command of a pipeline has its own, but
// where the server refuses the connection, as for a password that was changed, go-redis (9.23.0) says it of the
// pipeline alone. That a key is not there is said by its command's own reply, never by another's.
func unsaid(failed error) error {
	if errors.Is(failed, redis.Nil) {
		return nil
	}
	return failed
}

// learn takes the server's time from the reply of a claim script, if there is one.
func (s *Store) learn(ops []*operation, sent time.Time) {
	for _, op := range ops {
		if op.script == claimScript && !op.plain && op.err == nil {
			if now, ok := timeOf(op.reply); ok {
				s.clock.learn(now, sent, time.Now())
			}
			return
		}
	}
}

// lookAnew makes a cluster client look where the slots are, after an error that may come from a failover: by itself it
// does so once a minute, and after redirects. It comes back at once, and the client does it once at a time.
func (s *Store) lookAnew(err error) {
	if s.cluster != nil && !errors.Is(err, context.Canceled) {
		s.cluster.ReloadState(context.Background())
	}
}
