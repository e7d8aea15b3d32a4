package redisstore

import (
	"context"
	"errors"
	"fmt"
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

	// flushTimeout bounds a shared pipeline, if the client heeds contexts (ContextTimeoutEnabled). Callers do not wait
	// for it: each has a context of its own.
	flushTimeout = 10 * time.Second

	// stuckAfter is after what time a flush is passed by the next: far longer than a round trip, far shorter than a
	// lease.
	stuckAfter = 500 * time.Millisecond
)

// A lane carries operations to one node, in one flush at a time. Who comes while none is under way sends alone, in its
// own goroutine and context; the others wait in a queue, which goes in one pipeline when the flush has returned, and so
// do heartbeats always, and all with a client that is deaf. A flush that does not return is left alone after a while,
// and the next one takes another connection.
type lane struct {
	client  redis.UniversalClient
	cluster bool // the client finds the nodes of names
	deaf    bool // the client does not heed contexts
	barrier barrier
	failed  func(error) // is told what was wrong with the connection
	flushes *flushes
	clock   clock // of the server

	mu     sync.Mutex
	queue  []*operation
	flight int         // the number of the flush that is under way; 0: none is
	flown  int         // how many there were
	timer  *time.Timer // goes off when the flush has been under way for long
	began  time.Time
}

// do runs operations and returns when all of them are finished, or when the context has ended, or what the barrier adds
// to it. Those that are not known to be finished then are not the caller's any more: it sets nil in their place.
func (l *lane) do(ctx context.Context, ops []*operation) {
	if len(ops) == 1 && ops[0].size > maxShared {
		op := ops[0]
		op.state.Store(flushing)
		op.done = make(chan struct{}, 1)
		l.flushes.start(func() { l.execShared([]*operation{op}); op.finish() })
		l.await(ctx, ops)
		return
	}
	l.mu.Lock()
	if l.flight == 0 && len(ops) <= maxBatch && !ops[0].queues && !l.deaf {
		flight := l.begin()
		l.mu.Unlock()
		defer l.end(flight) // also when a hook of the client panics
		later, cancel := l.barrier.outlast(ctx)
		defer cancel()
		l.exec(later, ops)
		return
	}
	for _, op := range ops {
		op.done = make(chan struct{}, 1)
	}
	l.queue = append(l.queue, ops...)
	l.start()
	l.mu.Unlock()
	l.await(ctx, ops)
}

// await waits for operations that somebody else sends.
func (l *lane) await(ctx context.Context, ops []*operation) {
	later, cancel := l.barrier.outlast(ctx)
	defer cancel()
	for i, op := range ops {
		if op.await(ctx, later) {
			ops[i] = nil
			if l.failed != nil { // the client may still be trying to reach a node that is gone
				l.failed(ctx.Err())
			}
		}
	}
}

// begin begins a flush. The lane is locked.
func (l *lane) begin() (flight int) {
	l.flown++
	l.flight, l.began = l.flown, time.Now()
	if l.timer == nil {
		l.timer = time.AfterFunc(stuckAfter, l.pass)
	} else {
		l.timer.Reset(stuckAfter)
	}
	return l.flight
}

// end ends a flush; what has queued up meanwhile is sent by a goroutine of its own.
func (l *lane) end(flight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over(flight) {
		l.start()
	}
}

// over notes that a flush has returned, and tells whether it was still the lane's. The lane is locked.
func (l *lane) over(flight int) bool {
	if l.flight != flight {
		return false
	}
	l.flight = 0
	l.timer.Stop()
	return true
}

// pass lets the queue pass a flush that does not return.
func (l *lane) pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight != 0 && time.Since(l.began) < stuckAfter/2 {
		return // the timer was meant for another
	}
	l.flight = 0
	l.start()
}

// start starts to flush the queue, if there is something in it and no flush is under way. The lane is locked.
func (l *lane) start() {
	if len(l.queue) > 0 && l.flight == 0 {
		flight := l.begin()
		l.flushes.start(func() { l.flush(flight) })
	}
}

// flush sends the queue until it is empty, or another flush has passed.
func (l *lane) flush(flight int) {
	batch := make([]*operation, 0, maxBatch)
	for {
		l.mu.Lock()
		if l.flight != flight {
			l.mu.Unlock()
			return
		}
		batch = l.take(batch[:0])
		if len(batch) == 0 {
			l.over(flight)
			l.mu.Unlock()
			return
		}
		l.began = time.Now()
		l.timer.Reset(stuckAfter)
		l.mu.Unlock()
		l.execShared(batch)
		for _, op := range batch {
			op.finish()
		}
		runtime.Gosched() // those who were answered have the next operations
	}
}

// execShared is exec for operations of many callers, none of whom could be told of a panic in a hook of the client.
func (l *lane) execShared(ops []*operation) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			for _, op := range ops {
				op.err = fmt.Errorf("%w: %v", errPanic, p)
			}
		}
	}()
	l.exec(ctx, ops)
}

// take moves operations from the queue to the batch, without those whose callers have gone.
func (l *lane) take(batch []*operation) []*operation {
	taken := 0
	for _, op := range l.queue {
		if len(batch) == maxBatch {
			break
		}
		taken++
		if op.state.CompareAndSwap(waiting, flushing) {
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
		if op.err != nil && op.err != redis.Nil { //nolint:errorlint // what says no key is there is never wrapped
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
		cmd := ops[0].command(ctx, source)
		_ = l.client.Process(ctx, cmd) // the command has the error
		ops[0].reply, ops[0].err = cmd.Result()
		return
	}
	pipe := l.client.Pipeline()
	queue := make([]redis.Cmder, len(ops))
	for i, op := range ops {
		queue[i] = op.command(ctx, source)
	}
	_ = pipe.BatchProcess(ctx, queue...) // only queues, all at once: one by one, the queue is copied again and again
	var wait *redis.IntCmd
	if l.barrier.on() {
		wait = l.barrier.append(ctx, pipe)
	}
	_, failed := pipe.Exec(ctx)
	for _, op := range ops {
		op.reply, op.err = op.cmd.Result()
		if op.err == nil && op.reply == "" {
			op.err = unsaid(failed)
		}
		switch {
		case wait == nil || op.err != nil && !errors.Is(op.err, redis.Nil):
		case l.cluster: // the client has chosen a node for WAIT, which may be another one than the claim's
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
