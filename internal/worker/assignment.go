package worker

import (
	"context"
	"math"
	"slices"
	"time"
)

// An Assignment is what is halted together: a run, or a partition from its first record until it is given up. The
// loop's lock guards its fields.
type Assignment struct {
	loop   *Loop
	ctx    context.Context // of its handlers
	cancel context.CancelCauseFunc
	halted chan struct{}
	ended  chan struct{}
	left   func()

	room     int                // how many more messages it takes
	queue    []*Item            // received, and not taken
	inFlight []*Item            // taken, and not settled
	keys     map[string][]*Item // what waits for each order key that is at work
	waiting  map[*Item]struct{} // what waits to be tried again
	running  int                // messages that have slots
	pending  int                // messages whose turn has come, and what else it has to wait for before it has ended
	blocked  bool               // the one before it has not ended
	next     *Assignment        // is blocked by this one; nil: none
}

// Assign returns a new assignment, whose handlers have contexts that are made of ctx. It takes nothing before the one
// that it comes after, if any, has ended: a message could be handled twice at once, and out of order. It takes so many
// messages at a time, and queues others. It calls left, which must not wait, when one is settled or given back.
func (l *Loop) Assign(ctx context.Context, after *Assignment, room int, left func()) *Assignment {
	a := &Assignment{
		loop: l, halted: make(chan struct{}), ended: make(chan struct{}), left: left, room: room,
		keys: map[string][]*Item{}, waiting: map[*Item]struct{}{},
	}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if after != nil && !closed(after.ended) {
		after.next, a.blocked, a.pending = a, true, 1
	}
	return a
}

// IsHalted reports whether nothing of the assignment starts any more.
func (a *Assignment) IsHalted() bool { return closed(a.halted) }

// Ended is closed when nothing of it goes on any more, either.
func (a *Assignment) Ended() <-chan struct{} { return a.ended }

// HasEnded reports whether Ended is closed.
func (a *Assignment) HasEnded() bool { return closed(a.ended) }

// Hold keeps the assignment from ending until Release is called.
func (a *Assignment) Hold() {
	a.loop.mu.Lock()
	defer a.loop.mu.Unlock()
	a.pending++
}

// Release ends a Hold.
func (a *Assignment) Release() {
	a.loop.mu.Lock()
	a.release()
	a.loop.mu.Unlock()
	a.loop.fill()
}

// Queued is how many messages were received and are not taken.
func (a *Assignment) Queued() int {
	a.loop.mu.Lock()
	defer a.loop.mu.Unlock()
	return len(a.queue)
}

// InFlight returns the messages that were taken and are not settled.
func (a *Assignment) InFlight() []Message {
	a.loop.mu.Lock()
	defer a.loop.mu.Unlock()
	all := make([]Message, len(a.inFlight))
	for n, i := range a.inFlight {
		all[n] = i.Message
	}
	return all
}

// Receive takes messages that came together, and starts what can start. After Halt it gives them back, or drops them.
func (a *Assignment) Receive(items []*Item) {
	for _, i := range items {
		i.of, i.stopping = a, a.halted
		if i.Last {
			i.stopping = a.ctx.Done()
		}
	}
	a.loop.mu.Lock()
	a.queue = append(a.queue, items...)
	a.take()
	a.loop.mu.Unlock()
	a.loop.fill()
}

// take takes messages from the queue, as long as there is room. The loop is locked.
func (a *Assignment) take() {
	taken := 0
	for ; taken < len(a.queue) && a.room > 0 && !a.blocked; taken++ {
		i := a.queue[taken]
		a.queue[taken] = nil
		a.room--
		i.place = len(a.inFlight)
		a.inFlight = append(a.inFlight, i)
		if i.Key != "" {
			waiting, busy := a.keys[i.Key]
			if busy {
				a.keys[i.Key] = append(waiting, i)
				continue
			}
			a.keys[i.Key] = nil
		}
		a.turn(i)
	}
	if a.queue = a.queue[taken:]; len(a.queue) == 0 {
		a.queue = nil
	}
}

// turn lets a message start that waits for no other of its order key. The loop is locked.
func (a *Assignment) turn(i *Item) {
	a.pending++
	if closed(i.stopping) {
		a.loop.giveUp(i)
	} else {
		a.loop.ready = append(a.loop.ready, i)
	}
}

// release notes that something has gone that the assignment had to wait for before it ends. The loop is locked.
func (a *Assignment) release() {
	if a.pending--; a.pending == 0 {
		a.end()
	}
}

// end ends the assignment if it is halted, now that nothing goes on, and lets the next one begin. The loop is locked.
func (a *Assignment) end() {
	if !closed(a.halted) || closed(a.ended) {
		return
	}
	a.cancel(nil)
	close(a.ended)
	if next := a.next; next != nil {
		a.next, next.blocked = nil, false
		next.take()
		next.release()
	}
}

// Halt starts nothing more. What waits is given back, in the order of its key, or dropped. Handlers that run go on.
func (a *Assignment) Halt() {
	l := a.loop
	l.mu.Lock()
	if !closed(a.halted) {
		close(a.halted)
		a.pending++ // it ends when all of this is done
		a.sweep()
		a.room, a.blocked = math.MaxInt/2, false // those that leave make more
		a.take()
		a.release()
	}
	l.mu.Unlock()
	a.flush()
	l.fill()
}

// Cancel ends the contexts of the handlers, and reports how many messages were being handled.
func (a *Assignment) Cancel(cause error) (running int) {
	a.cancel(cause)
	a.flush()
	a.loop.mu.Lock()
	a.sweep()
	running = a.running
	a.loop.mu.Unlock()
	a.loop.fill()
	return running
}

// sweep gives up what waits to start, and may not any more. The loop is locked.
func (a *Assignment) sweep() {
	for i := range a.waiting {
		if closed(i.stopping) {
			i.timer.Stop()
			delete(a.waiting, i)
			a.loop.giveUp(i)
		}
	}
	a.loop.ready = slices.DeleteFunc(a.loop.ready, func(i *Item) bool {
		over := i.of == a && closed(i.stopping)
		if over {
			a.loop.giveUp(i)
		}
		return over
	})
}

// flush gives up what waits for a batch, and may not start any more.
func (a *Assignment) flush() {
	if l := a.loop; l.batcher != nil {
		for _, i := range l.batcher.flush() {
			l.wait(i, time.Time{})
		}
	}
}

// Late waits for assignments to end, or what has one, and returns those that have not in time.
func Late[A interface{ Ended() <-chan struct{} }](all []A, timeout time.Duration) (late []A) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for n, a := range all {
		select {
		case <-a.Ended():
		case <-timer.C:
			return slices.DeleteFunc(slices.Clone(all[n:]), func(a A) bool { return closed(a.Ended()) })
		}
	}
	return nil
}
