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

	// mostFlying is how many batches are under way at most: one that hangs, and one that has passed it. Each may have a
	// connection, and where all hang, further ones would hang, too.
	mostFlying = 2
)

// Yield lets other goroutines run. A simulation puts a function that does nothing in its place before anything runs,
// because chance decides who runs then.
var Yield = runtime.Gosched

// A Line sends operations in batches, one at a time. An operation that comes while none is under way goes at once, and
// alone; those that come meanwhile go together when it has returned. So a lone operation waits for nobody, and there is
// no timer. A batch that does not return is left alone after half a second, and the next one passes it. If that hangs,
// too, the others wait until one of both returns.
type Line[Op, Res any] struct {
	// Send does operations, and returns as many results in their order. Its context ends after Timeout.
	Send    func(ctx context.Context, ops []Op) []Res
	Timeout time.Duration

	// Alone says of an operation that it goes beside the others, because it takes long to send. Nil: none does.
	Alone func(Op) bool

	// Failed makes the results of a batch whose Send has panicked, or returned too few.
	Failed func(error) Res

	mu         sync.Mutex
	queue      []item[Op, Res]
	spare      batch[Op, Res] // to be used again
	number     int            // the number of the batch that is under way; 0: none is
	flown      int            // how many there were
	flying     int            // how many have not returned
	full       chan struct{}  // closed when the queue goes on, which too many batches that hang hold up; nil: none do
	timer      *time.Timer    // goes off when a batch has been under way for long
	began      time.Time
	background Background
}

type item[Op, Res any] struct {
	op   Op
	done func(*Res)
}

// A batch is what travels together.
type batch[Op, Res any] struct {
	items []item[Op, Res]
	ops   []Op
}

// Do sends an operation and returns its result. It waits for that, whatever becomes of ctx, which lends its values to
// an operation that goes alone.
func (l *Line[Op, Res]) Do(ctx context.Context, op Op) *Res {
	if l.alone(op) {
		return &l.send(context.WithoutCancel(ctx), []Op{op})[0]
	}
	l.mu.Lock()
	if l.number == 0 {
		number := l.begin()
		l.mu.Unlock()
		defer l.end(number)
		return &l.send(context.WithoutCancel(ctx), []Op{op})[0]
	}
	result := make(chan *Res, 1)
	l.queue = append(l.queue, item[Op, Res]{op, func(r *Res) { result <- r }})
	l.mu.Unlock()
	return <-result
}

// Go hands an operation over. When it has its result, done is told, in a goroutine that sends further operations
// afterwards: it must not wait for anything.
func (l *Line[Op, Res]) Go(op Op, done func(*Res)) {
	if l.alone(op) {
		l.goAlone(op, done)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, item[Op, Res]{op, done})
	l.start()
}

func (l *Line[Op, Res]) goAlone(op Op, done func(*Res)) {
	l.background.Go(func() { done(&l.send(context.Background(), []Op{op})[0]) })
}

func (l *Line[Op, Res]) alone(op Op) bool { return l.Alone != nil && l.Alone(op) }

// Wait returns when nothing that was handed over is under way.
func (l *Line[Op, Res]) Wait() {
	for again := true; again; {
		l.mu.Lock()
		again = l.full != nil // what is held up begins meanwhile
		l.mu.Unlock()
		l.background.Wait()
	}
}

// A PanicError is a panic of Send, such as one in a hook of a store's client.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("the client panicked: %v\n%s", e.Value, e.Stack)
}

// begin begins a batch. The line is locked.
func (l *Line[Op, Res]) begin() (number int) {
	l.flown++
	l.flying++
	l.number, l.began = l.flown, time.Now()
	if l.timer == nil {
		l.timer = time.AfterFunc(stuckAfter, l.pass)
	} else {
		l.timer.Reset(stuckAfter)
	}
	return l.number
}

// end ends a batch; what has queued up meanwhile is sent by a goroutine of its own.
func (l *Line[Op, Res]) end(number int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over(number) {
		l.start()
	}
}

// over notes that a batch has returned, and tells whether it was not passed before. The line is locked.
func (l *Line[Op, Res]) over(number int) bool {
	l.flying--
	if l.number != number {
		if l.full != nil {
			l.leave()
		}
		return false
	}
	l.goOn()
	l.number = 0
	l.timer.Stop()
	return true
}

// pass lets the queue pass a batch that does not return.
func (l *Line[Op, Res]) pass() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.number != 0 && time.Since(l.began) < stuckAfter/2 {
		return // the timer was meant for another
	}
	switch {
	case l.full != nil: // noted already
		return
	case l.number == 0, l.flying < mostFlying:
		l.leave()
		return
	}
	full := make(chan struct{})
	l.full = full
	l.background.Go(func() { <-full })
}

// leave leaves the batch that is under way alone. The line is locked.
func (l *Line[Op, Res]) leave() {
	l.number = 0
	l.start()
	l.goOn()
}

// goOn notes that the queue is not held up any more. The line is locked.
func (l *Line[Op, Res]) goOn() {
	if l.full != nil {
		close(l.full)
		l.full = nil
	}
}

// start starts to send the queue, if there is something in it and no batch is under way. The line is locked.
func (l *Line[Op, Res]) start() {
	if len(l.queue) > 0 && l.number == 0 {
		number := l.begin()
		l.background.Go(func() { l.run(number) })
	}
}

// run sends the queue until it is empty, or another batch has passed.
func (l *Line[Op, Res]) run(number int) {
	var b batch[Op, Res]
	for {
		Yield() // those who were answered have the next operations
		l.mu.Lock()
		if l.number != number {
			l.over(number)
			l.mu.Unlock()
			return
		}
		if len(l.queue) == 0 {
			l.over(number)
			l.spare = b
			l.mu.Unlock()
			return
		}
		if b.items == nil {
			b, l.spare = l.spare, batch[Op, Res]{}
		}
		l.take(&b)
		l.goOn()
		l.began = time.Now()
		l.timer.Reset(stuckAfter)
		l.mu.Unlock()
		results := l.send(context.Background(), b.ops)
		for i := range results {
			b.items[i].done(&results[i])
		}
		clear(b.items)
		clear(b.ops)
	}
}

// take moves what waits into a batch. The line is locked.
func (l *Line[Op, Res]) take(b *batch[Op, Res]) {
	if len(l.queue) <= most {
		b.items, l.queue = l.queue, b.items[:0]
	} else {
		b.items = append(b.items[:0], l.queue[:most]...)
		rest := copy(l.queue, l.queue[most:])
		clear(l.queue[rest:])
		l.queue = l.queue[:rest]
	}
	b.ops = b.ops[:0]
	for i := range b.items {
		b.ops = append(b.ops, b.items[i].op)
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
