package redisstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// maxBatch is how many operations a pipeline has at most.
	maxBatch = 256

	// maxShared is how large an operation may be, in bytes, to travel with others. A larger one would hold them up, and
	// a server that refuses it closes the connection.
	maxShared = 64 << 10
)

// distinct parts operations into the first on each record and the others, which have to wait. Otherwise a first one
// that is sent again, because the server forgot its script, would come after them. Names are its own to use.
func distinct(ops []*operation, names map[string]struct{}) (first, others []*operation) {
	if len(ops) < 2 {
		return ops, nil
	}
	clear(names)
	for i, op := range ops {
		_, known := names[op.name]
		switch {
		case known && first == nil:
			first = slices.Clone(ops[:i])
			fallthrough
		case known:
			others = append(others, op)
			continue
		case first != nil:
			first = append(first, op)
		}
		names[op.name] = struct{}{}
	}
	if first == nil {
		return ops, nil
	}
	return first, others
}

// send runs operations on different records, and leaves in each its reply or why there is none; claims wait for the
// barrier. It reports false if the context ended before: then the operations are not the caller's any more.
func (s *Store) send(ctx context.Context, ops []*operation, b barrier) bool {
	if ctx.Err() != nil {
		return false
	}
	ctx, cancel := b.outlast(ctx)
	defer cancel()
	sent := s.within(ctx, func() {
		for _, together := range pipelines(ops) {
			s.exchange(ctx, together, b)
		}
	})
	if !sent {
		s.lookAnew(ctx.Err()) // the client may still be trying to reach a node that is gone
	}
	return sent
}

// within does something that ends with its context if the client heeds contexts. It reports false if the context ended
// before. A panic in a hook of the client is the caller's.
func (s *Store) within(ctx context.Context, do func()) bool {
	if !s.deaf {
		do()
		return true
	}
	done := make(chan any, 1)
	s.background.Go(func() {
		defer func() { done <- recover() }()
		do()
	})
	select {
	case panicked := <-done:
		if panicked != nil {
			panic(panicked)
		}
		return true
	case <-ctx.Done():
		return false
	}
}

// pipelines says what travels together: large ones travel alone, behind the others.
func pipelines(ops []*operation) [][]*operation {
	if len(ops) <= maxBatch && !slices.ContainsFunc(ops, (*operation).large) {
		return [][]*operation{ops}
	}
	var small, large []*operation
	for _, op := range ops {
		if op.large() {
			large = append(large, op)
		} else {
			small = append(small, op)
		}
	}
	return slices.AppendSeq(slices.Collect(slices.Chunk(small, maxBatch)), slices.Chunk(large, 1))
}

func (op *operation) large() bool { return len(op.packed) > maxShared }

// exchange sends a pipeline, or, if it waits for replicas of a Cluster, one to each node: WAIT has no key to find the
// node by.
func (s *Store) exchange(ctx context.Context, ops []*operation, b barrier) {
	if !b.on() || s.cluster == nil {
		s.pipeline(ctx, s.rdb, ops, b)
		return
	}
	nodes := map[redis.UniversalClient][]*operation{}
	for _, op := range ops {
		var client redis.UniversalClient = s.cluster
		if node, err := s.cluster.MasterForKey(ctx, op.name); err == nil { // else the client says what is wrong
			client = node
		}
		nodes[client] = append(nodes[client], op)
	}
	var group sync.WaitGroup
	for client, ops := range nodes {
		group.Go(func() { s.pipeline(ctx, client, ops, b) })
	}
	group.Wait()
}

// pipeline sends operations together, and again with their source those whose script the server does not know.
func (s *Store) pipeline(ctx context.Context, client redis.UniversalClient, ops []*operation, b barrier) {
	s.roundTrip(ctx, client, ops, b, false)
	var again []*operation
	for _, op := range ops {
		switch {
		case op.err == nil || errors.Is(op.err, redis.Nil):
			s.loaded.Store(true)
		case redis.HasErrorPrefix(op.err, "NOSCRIPT"):
			again = append(again, op)
		default:
			s.lookAnew(op.err)
		}
	}
	if len(again) > 0 {
		s.roundTrip(ctx, client, again, b, true)
	}
}

func (s *Store) roundTrip(
	ctx context.Context, client redis.UniversalClient, ops []*operation, b barrier, source bool,
) {
	cmds := make([]redis.Cmder, len(ops), len(ops)+1)
	for i, op := range ops {
		cmds[i] = op.command(ctx, source)
	}
	var wait *redis.IntCmd
	if b.on() {
		wait = b.command(ctx)
		cmds = append(cmds, wait)
	}
	var failed error
	sent := time.Now()
	if len(cmds) == 1 {
		_ = client.Process(ctx, cmds[0]) // the command has the error
	} else {
		pipe := client.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...) // only queues, all at once: one by one, the queue is copied again and again
		_, failed = pipe.Exec(ctx)
	}
	came := time.Now()
	for _, op := range ops {
		op.reply, op.err = op.cmd.Result()
		if op.err == nil && op.reply == "" {
			op.err = unsaid(failed)
		}
		if wait != nil {
			op.lack = b.lack(client, wait)
		}
	}
	s.learn(ops, sent, came)
}

// unsaid is the error of commands that have neither a reply nor an error. Where the server refuses the connection, as
// after a change of password, go-redis (9.23.0) sets the error of the pipeline alone. That a key is not there is said
// by its command's own reply, never by another's.
func unsaid(failed error) error {
	if errors.Is(failed, redis.Nil) {
		return nil
	}
	return failed
}

// learn takes the server's time from the reply of a claim script, if there is one.
func (s *Store) learn(ops []*operation, sent, came time.Time) {
	for _, op := range ops {
		if op.script == claimScript && !op.plain() && op.err == nil {
			if now, ok := timeOf(op.reply); ok {
				s.clock.learn(now, sent, came)
			}
			return
		}
	}
}

// lookAnew makes a cluster client look where the slots are, after an error that may come from a failover. Otherwise it
// looks once a minute and after redirects. lookAnew returns at once, and the client looks once at a time.
func (s *Store) lookAnew(err error) {
	if s.cluster != nil && !errors.Is(err, context.Canceled) {
		s.cluster.ReloadState(context.Background())
	}
}
