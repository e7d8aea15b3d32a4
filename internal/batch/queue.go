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

// Yield lets other goroutines run. The simulator replaces it with a function that does nothing, because chance
// decides which of them runs.
var Yield = runtime.Gosched

// A Queue sends operations in batches, one at a time. An operation that comes while none is under way goes at once, and
// alone; those that come meanwhile go together when it has returned. So a lone operation waits for nobody, and there is
// no timer. A batch that does not return is left alone after half a second, and the next one passes it. If that hangs,
// too, the others wait until one of both returns.
type Queue[Op, Res any] struct {
	// Send does operations, and returns as many results in their order. Its context ends after Timeout.
	Send    func(ctx context.Context, ops []Op) []Res
	Timeout time.Duration

	// Alone says of an operation that it goes beside the others, because it takes long to send. Nil: none does.
	Alone func(Op) bool

	// Failed makes the results of a batch whose Send has panicked, or returned too few.
	Failed func(error) Res

	mu         sync.Mutex
	waiting    []item[Op, Res]
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
	op Op
	to Receiver[Res]
}

// A Receiver gets the result of an operation, in a goroutine that sends further operations afterwards: it must not wait
// for anything.
type Receiver[Res any] interface{ Receive(*Res) }

// A waiter waits for its result.
type waiter[Res any] chan *Res

func (w waiter[Res]) Receive(r *Res) { w <- r }

// A batch is what travels together.
type batch[Op, Res any] struct {
	items []item[Op, Res]
	ops   []Op
}

// Do sends an operation and returns its result. It waits for that, whatever becomes of ctx, which lends its values to
// an operation that goes alone.
func (q *Queue[Op, Res]) Do(ctx context.Context, op Op) *Res {
	if q.alone(op) {
		return &q.send(context.WithoutCancel(ctx), []Op{op})[0]
	}
	q.mu.Lock()
	if q.number == 0 {
		number := q.begin()
		q.mu.Unlock()
		defer q.background.Enter().Done()
		defer q.end(number)
		return &q.send(context.WithoutCancel(ctx), []Op{op})[0]
	}
	result := make(waiter[Res], 1)
	q.waiting = append(q.waiting, item[Op, Res]{op, result})
	q.mu.Unlock()
	return <-result
}

// Go hands an operation over.
func (q *Queue[Op, Res]) Go(op Op, to Receiver[Res]) {
	if q.Put(op, to) {
		q.Flush()
	}
}

// Put is Go for the first of several operations that shall travel together, if it reports true: it waits for Flush.
func (q *Queue[Op, Res]) Put(op Op, to Receiver[Res]) bool {
	if q.alone(op) {
		q.goAlone([]Op{op}, to)
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, item[Op, Res]{op, to})
	return true
}

// goAlone sends one that does not travel with others. In Put the closure would cost memory for each that does.
func (q *Queue[Op, Res]) goAlone(op []Op, to Receiver[Res]) {
	q.background.Go(func() { to.Receive(&q.send(context.Background(), op)[0]) })
}

// Flush sends what was put into the queue.
func (q *Queue[Op, Res]) Flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.start()
}

func (q *Queue[Op, Res]) alone(op Op) bool { return q.Alone != nil && q.Alone(op) }

// Wait returns when nothing that was handed over is under way.
func (q *Queue[Op, Res]) Wait() {
	for again := true; again; {
		q.background.Wait()
		q.mu.Lock()
		again = q.full != nil || q.flying > 0 || len(q.waiting) > 0 // what is held up begins meanwhile
		q.mu.Unlock()
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

// begin begins a batch. The queue is locked.
func (q *Queue[Op, Res]) begin() (number int) {
	q.flown++
	q.flying++
	q.number, q.began = q.flown, time.Now()
	if q.timer == nil {
		q.timer = time.AfterFunc(stuckAfter, q.pass)
	} else {
		q.timer.Reset(stuckAfter)
	}
	return q.number
}

// end ends a batch; what has queued up meanwhile is sent by a goroutine of its own.
func (q *Queue[Op, Res]) end(number int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over(number) {
		q.start()
	}
}

// over notes that a batch has returned, and tells whether it was not passed before. The queue is locked.
func (q *Queue[Op, Res]) over(number int) bool {
	q.flying--
	if q.number != number {
		if q.full != nil {
			q.leave()
		}
		return false
	}
	q.goOn()
	q.number = 0
	q.timer.Stop()
	return true
}

// pass lets the queue pass a batch that does not return.
func (q *Queue[Op, Res]) pass() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.number != 0 && time.Since(q.began) < stuckAfter/2 {
		return // the timer was meant for another
	}
	switch {
	case q.full != nil: // noted already
		return
	case q.number == 0, q.flying < mostFlying:
		q.leave()
		return
	}
	full := make(chan struct{})
	q.full = full
	q.background.Go(func() { <-full })
}

// leave leaves the batch that is under way alone. The queue is locked.
func (q *Queue[Op, Res]) leave() {
	q.number = 0
	q.start()
	q.goOn()
}

// goOn notes that the queue is not held up any more. The queue is locked.
func (q *Queue[Op, Res]) goOn() {
	if q.full != nil {
		close(q.full)
		q.full = nil
	}
}

// start starts to send the queue, if there is something in it and no batch is under way. The queue is locked.
func (q *Queue[Op, Res]) start() {
	if len(q.waiting) > 0 && q.number == 0 {
		number := q.begin()
		q.background.Go(func() { q.run(number) })
	}
}

// run sends the queue until it is empty, or another batch has passed.
func (q *Queue[Op, Res]) run(number int) {
	var b batch[Op, Res]
	for {
		Yield() // those who were answered have the next operations
		q.mu.Lock()
		if q.number != number {
			q.over(number)
			q.mu.Unlock()
			return
		}
		if len(q.waiting) == 0 {
			q.over(number)
			q.spare = b
			q.mu.Unlock()
			return
		}
		if b.items == nil {
			b, q.spare = q.spare, batch[Op, Res]{}
		}
		q.take(&b)
		q.goOn()
		q.began = time.Now()
		q.timer.Reset(stuckAfter)
		q.mu.Unlock()
		results := q.send(context.Background(), b.ops)
		for i := range results {
			b.items[i].to.Receive(&results[i])
		}
		clear(b.items)
		clear(b.ops)
	}
}

// take moves what waits into a batch. The queue is locked.
func (q *Queue[Op, Res]) take(b *batch[Op, Res]) {
	if len(q.waiting) <= most {
		b.items, q.waiting = q.waiting, b.items[:0]
	} else {
		b.items = append(b.items[:0], q.waiting[:most]...)
		rest := copy(q.waiting, q.waiting[most:])
		clear(q.waiting[rest:])
		q.waiting = q.waiting[:rest]
	}
	b.ops = b.ops[:0]
	for i := range b.items {
		b.ops = append(b.ops, b.items[i].op)
	}
}

// send sends a batch. Nobody else could be told of a panic in it.
func (q *Queue[Op, Res]) send(ctx context.Context, ops []Op) (results []Res) {
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			results = q.failed(len(ops), &PanicError{v, debug.Stack()})
		}
	}()
	results = q.Send(ctx, ops)
	if len(results) != len(ops) {
		return q.failed(len(ops), fmt.Errorf("%d operations were answered with %d results", len(ops), len(results)))
	}
	return results
}

func (q *Queue[Op, Res]) failed(n int, err error) []Res {
	results := make([]Res, n)
	for i := range results {
		results[i] = q.Failed(err)
	}
	return results
}
