package redisstore

import (
	"cmp"
	"context"
	"errors"
	"runtime"
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

	// flushTimeout bounds a shared pipeline. Callers do not wait for it: each has a context of its own.
	flushTimeout = 10 * time.Second
)

// A lane carries operations to one node, in one flush at a time. Who comes while none is under way sends alone, in its
// own goroutine and context; the others wait in a queue, which goes in one pipeline when the flush has returned.
type lane struct {
	client  redis.UniversalClient
	cluster bool // the client finds the nodes of names
	barrier barrier
	failed  func(error) // is told what was wrong with the connection
	flushes *sync.WaitGroup
	clock   clock // of the server

	mu    sync.Mutex
	queue []*operation
	busy  bool // a flush is under way
}

// do runs operations and returns when all of them are finished, or when the context has ended. Those that are not known
// to be finished then are not the caller's any more: it sets nil in their place.
func (l *lane) do(ctx context.Context, ops []*operation) {
	if len(ops) == 1 && ops[0].size() > maxShared {
		l.exec(ctx, ops)
		return
	}
	l.mu.Lock()
	if !l.busy && len(ops) <= maxBatch {
		l.busy = true
		l.mu.Unlock()
		l.exec(ctx, ops)
		l.returned()
		return
	}
	l.queue = append(l.queue, ops...)
	l.start()
	l.mu.Unlock()
	for i, op := range ops {
		if op.await(ctx) {
			ops[i] = nil
			if l.failed != nil { // the client may still be trying to reach a node that is gone
				l.failed(ctx.Err())
			}
		}
	}
}

// returned ends a flush of a caller; what has queued up meanwhile is sent by a goroutine of its own.
func (l *lane) returned() {
	l.mu.Lock()
	l.busy = false
	l.start()
	l.mu.Unlock()
}

// start starts to flush the queue, if there is something in it and no flush is under way. The lane is locked.
func (l *lane) start() {
	if len(l.queue) > 0 && !l.busy {
		l.busy = true
		l.flushes.Go(l.flush)
	}
}

// flush sends the queue until it is empty.
func (l *lane) flush() {
	batch := make([]*operation, 0, maxBatch)
	for {
		l.mu.Lock()
		batch = l.take(batch[:0])
		if len(batch) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		l.exec(ctx, batch)
		cancel()
		for _, op := range batch {
			op.finish()
		}
		runtime.Gosched() // those who were answered have the next operations
	}
}

// take moves operations from the queue to the batch, without those whose callers have gone.
func (l *lane) take(batch []*operation) []*operation {
	taken := 0
	for _, op := range l.queue {
		if len(batch) == maxBatch {
			break
		}
		taken++
		if op.state.Load() != abandoned {
			batch = append(batch, op)
		}
	}
	rest := copy(l.queue, l.queue[taken:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	return batch
}

// exec sends operations in one pipeline, and again with their source those whose script the server does not know.
func (l *lane) exec(ctx context.Context, ops []*operation) {
	l.send(ctx, ops, false)
	var again []*operation
	for _, op := range ops {
		if op.err != nil {
			switch {
			case redis.HasErrorPrefix(op.err, "NOSCRIPT"):
				again = append(again, op)
			case l.failed != nil:
				l.failed(op.err)
			}
		}
	}
	if len(again) > 0 {
		l.send(ctx, again, true)
	}
}

func (l *lane) send(ctx context.Context, ops []*operation, source bool) {
	sent := time.Now()
	defer func() { l.learn(ops, sent) }()
	if len(ops) == 1 && !l.barrier.on() {
		cmd := ops[0].command(ctx, source, l.cluster)
		_ = l.client.Process(ctx, cmd) // the command has the error
		ops[0].reply, ops[0].err = cmd.Result()
		return
	}
	pipe := l.client.Pipeline()
	cmds := make([]*redis.StringCmd, len(ops))
	for i, op := range ops {
		cmds[i] = op.command(ctx, source, l.cluster)
		_ = pipe.Process(ctx, cmds[i]) // only queues
	}
	wait := l.barrier.append(ctx, pipe)
	_, err := pipe.Exec(ctx) // the first error of a command, or what befell all of them
	for i, op := range ops {
		op.reply, op.err = cmds[i].Result()
		done := op.err == nil || errors.Is(op.err, redis.Nil)
		switch {
		case op.err == nil && op.reply == "": // nothing replies so
			op.err = cmp.Or(err, errReply)
		case done && wait != nil:
			var refused error
			if op.replicas, refused = wait.replicas(); refused != nil {
				op.err = refused
			}
		}
	}
}

// learn takes the server's time from the reply of a claim script, if there is one.
func (l *lane) learn(ops []*operation, sent time.Time) {
	for _, op := range ops {
		if op.script == claimScript && !op.plain && op.err == nil {
			if now, ok := timeOf(op.reply); ok {
				l.clock.learn(now, sent, time.Now())
			}
			return
		}
	}
}
