// Package batch lets operations of many callers travel together.
package batch

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// most is how many operations travel together at most.
	most = 256

	// stuckAfter is after what time a batch that has not returned is passed by the next: far longer than a round trip,
	// far shorter than a lease.
	stuckAfter = 500 * time.Millisecond
)

// A Line sends operations in batches, one at a time. An operation that comes while none is under way goes at once, and
// alone; those that come meanwhile go together when it has returned. So a lone operation waits for nobody, and there is
// no timer. A batch that does not return is left alone after half a second, and the next one passes it.
type Line[Op, Res any] struct {
	// Send does operations, and returns as many results in their order. Its context ends after Timeout.
	Send    func(ctx context.Context, ops []Op) []Res
	Timeout time.Duration

	// Failed makes the results of a batch whose Send has panicked, or returned too few.
	Failed func(error) Res

	mu         sync.Mutex
	queue      []item[Op, Res]
	flight     int         // the number of the batch that is under way; 0: none is
	flown      int         // how many there were
	timer      *time.Timer // goes off when a batch has been under way for long
	began      time.Time
	background Background
}

type item[Op, Res any] struct {
	op   Op
	done func(Res)
}

// Do sends an operation and returns its result. It waits for that, whatever becomes of ctx, which lends its values to
// an operation that goes alone.
func (l *Line[Op, Res]) Do(ctx context.Context, op Op) Res {
	l.mu.Lock()
	if l.flight == 0 {
		flight := l.begin()
		l.mu.Unlock()
		defer l.end(flight)
		return l.send(context.WithoutCancel(ctx), []Op{op})[0]
	}
	result := make(chan Res, 1)
	l.queue = append(l.queue, item[Op, Res]{op, func(r Res) { result <- r }})
	l.mu.Unlock()
	return <-result
}

// Go hands operations over. When one has its result, done is told, with its place in ops, in a goroutine that sends
// further operations afterwards: it must not wait for anything.
func (l *Line[Op, Res]) Go(ops []Op, done func(int, Res)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, op := range ops {
		l.queue = append(l.queue, item[Op, Res]{op, func(r Res) { done(i, r) }})
	}
	l.start()
}

// GoOne is Go for one operation.
func (l *Line[Op, Res]) GoOne(op Op, done func(Res)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, item[Op, Res]{op, done})
	l.start()
}

// Wait returns when nothing that was handed over is under way.
func (l *Line[Op, Res]) Wait() { l.background.Wait() }

// A PanicError is a panic of Send, such as one in a hook of a store's client.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("the client panicked: %v\n%s", e.Value, e.Stack)
}

// begin begins a batch. The line is locked.
func (l *Line[Op, Res]) begin() (flight int) {
	l.flown++
	l.flight, l.began = l.flown, time.Now()
	if l.timer == nil {
		l.timer = time.AfterFunc(stuckAfter, l.pass)
	} else {
		l.timer.Reset(stuckAfter)
	}
	return l.flight
}

// end ends a batch; what has queued up meanwhile is sent by a goroutine of its own.
func (l *Line[Op, Res]) end(flight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over(flight) {
		l.start()
	}
}

// over notes that a batch has returned, and tells whether it was not passed before. The line is locked.
func (l *Line[Op, Res]) over(flight int) bool {
	if l.flight != flight {
		return false
	}
	l.flight = 0
	l.timer.Stop()
	return true
}

// pass lets the queue pass a batch that does not return.
func (l *Line[Op, Res]) pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flight != 0 && time.Since(l.began) < stuckAfter/2 {
		return // the timer was meant for another
	}
	l.flight = 0
	l.start()
}

// start starts to send the queue, if there is something in it and no batch is under way. The line is locked.
func (l *Line[Op, Res]) start() {
	if len(l.queue) > 0 && l.flight == 0 {
		flight := l.begin()
		l.background.Go(func() { l.run(flight) })
	}
}

// run sends the queue until it is empty, or another batch has passed.
func (l *Line[Op, Res]) run(flight int) {
	var batch []item[Op, Res]
	for {
		runtime.Gosched() // those who were answered have the next operations
		l.mu.Lock()
		if l.flight != flight {
			l.mu.Unlock()
			return
		}
		n := min(most, len(l.queue))
		batch = append(batch[:0], l.queue[:n]...)
		rest := copy(l.queue, l.queue[n:])
		clear(l.queue[rest:])
		l.queue = l.queue[:rest]
		if n == 0 {
			l.over(flight)
			l.mu.Unlock()
			return
		}
		l.began = time.Now()
		l.timer.Reset(stuckAfter)
		l.mu.Unlock()
		ops := make([]Op, n)
		for i, one := range batch {
			ops[i] = one.op
		}
		for i, result := range l.send(context.Background(), ops) {
			batch[i].done(result)
		}
		clear(batch)
	}
}

// send sends a batch. Nobody else could be told of a panic in it.
func (l *Line[Op, Res]) send(ctx context.Context, ops []Op) (results []Res) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			results = l.failed(len(ops), &PanicError{v, debug.Stack()})
		}
	}()
	results = l.Send(ctx, ops)
	if len(results) != len(ops) {
		return l.failed(len(ops), fmt.Errorf("%d operations were answered with %d results", len(ops), len(results)))
	}
	return results
}

func (l *Line[Op, Res]) failed(n int, err error) []Res {
	results := make([]Res, n)
	for i := range results {
		results[i] = l.Failed(err)
	}
	return results
}
