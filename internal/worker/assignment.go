package worker

import (
	"context"
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

	room     int                  // how many more messages it takes
	queue    []Message            // received, and not taken
	inFlight []Message            // taken, and not settled
	keys     map[string][]Message // what waits for each order key that is at work
	waiting  map[Message]struct{} // what waits to be tried again
	running  int                  // messages that have slots
	pending  int                  // messages whose turn has come, and what else it has to wait for before it has ended
	blocked  bool                 // the one before it has not ended
	next     *Assignment          // is blocked by this one; nil: none
}

// Assign returns a new assignment, whose handlers have contexts that are made of ctx. It takes so many messages at a
// time, and queues others until those are settled. It takes nothing before the one that it comes after, if any, has
// ended: a message could be handled twice at once, and out of order.
func (l *Loop) Assign(ctx context.Context, room int, after *Assignment) *Assignment {
	a := &Assignment{
		loop: l, halted: make(chan struct{}), ended: make(chan struct{}), room: room,
		keys: map[string][]Message{}, waiting: map[Message]struct{}{},
	}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if after != nil && !closed(after.ended) {
		after.next, a.blocked, a.pending = a, true, 1
	}
	return a
}

// Halted is closed when nothing of the assignment starts any more.
func (a *Assignment) Halted() <-chan struct{} { return a.halted }

// Ended is closed when nothing of it goes on any more, either.
func (a *Assignment) Ended() <-chan struct{} { return a.ended }

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

// InFlight is how many messages were taken and are not settled.
func (a *Assignment) InFlight() int {
	a.loop.mu.Lock()
	defer a.loop.mu.Unlock()
	return len(a.inFlight)
}

// Messages returns those that were taken and are not settled.
func (a *Assignment) Messages() []Message {
	a.loop.mu.Lock()
	defer a.loop.mu.Unlock()
	return slices.Clone(a.inFlight)
}

// Receive takes messages that came together, and starts what can start. After Halt it gives them back, or drops them.
func (a *Assignment) Receive(messages []Message) {
	for _, m := range messages {
		m.item().assignment = a
	}
	a.loop.mu.Lock()
	a.queue = append(a.queue, messages...)
	a.take()
	a.loop.mu.Unlock()
	a.loop.fill()
}

// take takes messages from the queue, as long as there is room. The loop is locked.
func (a *Assignment) take() {
	taken := 0
	for ; taken < len(a.queue) && a.room > 0 && !a.blocked; taken++ {
		m := a.queue[taken]
		a.queue[taken] = nil
		a.room--
		i := m.item()
		i.place = len(a.inFlight)
		a.inFlight = append(a.inFlight, m)
		if i.Key != "" {
			waiting, busy := a.keys[i.Key]
			if busy {
				a.keys[i.Key] = append(waiting, m)
				continue
			}
			a.keys[i.Key] = nil
		}
		a.turn(m)
	}
	if a.queue = a.queue[taken:]; len(a.queue) == 0 {
		a.queue = nil
	}
}

// turn lets a message start that waits for no other of its order key. The loop is locked.
func (a *Assignment) turn(m Message) {
	a.pending++
	if closed(m.item().stopping()) {
		a.loop.giveUp(m)
	} else {
		a.loop.ready = append(a.loop.ready, m)
	}
}

// leave forgets a message, and lets those start that have waited for it. The loop is locked.
func (a *Assignment) leave(i *Item) {
	last := len(a.inFlight) - 1
	moved := a.inFlight[last]
	a.inFlight[i.place], a.inFlight[last] = moved, nil
	moved.item().place = i.place
	a.inFlight = a.inFlight[:last]
	if i.Key != "" {
		if waiting := a.keys[i.Key]; len(waiting) > 0 {
			next := waiting[0]
			waiting[0] = nil
			a.keys[i.Key] = waiting[1:]
			a.turn(next)
		} else {
			delete(a.keys, i.Key)
		}
	}
	a.room++
	a.take()
	a.release()
}

// release notes that something has gone that the assignment had to wait for before it ends. The loop is locked.
func (a *Assignment) release() {
	a.pending--
	a.end()
}

// end ends the assignment if it is halted and nothing goes on any more, and lets the next one begin. The loop is
// locked.
func (a *Assignment) end() {
	if a.pending > 0 || !closed(a.halted) || closed(a.ended) {
		return
	}
	close(a.ended)
	a.cancel(nil)
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
		a.queue = nil
		a.sweep()
		a.end()
	}
	l.mu.Unlock()
	if l.batcher != nil {
		l.batcher.flush()
	}
	l.fill()
}

// Cancel ends the contexts of the handlers, and reports how many messages were being handled.
func (a *Assignment) Cancel(cause error) (running int) {
	a.cancel(cause)
	a.loop.mu.Lock()
	defer a.loop.mu.Unlock()
	a.sweep()
	return a.running
}

// sweep gives up what waits to start, and may not any more. The loop is locked.
func (a *Assignment) sweep() {
	l := a.loop
	for m := range a.waiting {
		if i := m.item(); closed(i.stopping()) {
			i.timer.Stop()
			delete(a.waiting, m)
			l.giveUp(m)
		}
	}
	l.ready = slices.DeleteFunc(l.ready, func(m Message) bool {
		over := m.item().assignment == a && closed(m.item().stopping())
		if over {
			l.giveUp(m)
		}
		return over
	})
}

// Late waits for assignments to end, or what has one, and returns those that have not in time.
func Late[A interface{ Ended() <-chan struct{} }](all []A, timeout time.Duration) (late []A) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for i, a := range all {
		select {
		case <-a.Ended():
		case <-timer.C:
			return slices.DeleteFunc(slices.Clone(all[i:]), func(a A) bool { return closed(a.Ended()) })
		}
	}
	return nil
}
