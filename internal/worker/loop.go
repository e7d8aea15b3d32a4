// Package worker has the consumer loop that the workers and sources of all transports run.
package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/batch"
)

// A Message is what a transport does with one that it has received.
type Message interface {
	// Delivery is what a Processor gets for the next try, after so many, and when that is due; zero: now. The loop adds
	// the handler's name, and what it knows of the drain. The header belongs to the handler.
	Delivery(tries int) (d consumer.Delivery, due time.Time)

	// Acked acknowledges the message. Others are acknowledged after it.
	Acked(ctx context.Context)

	// Decided carries out a decision that is not an ack, and may wait. If it reports again, the message is tried again
	// here when it is due.
	Decided(ctx context.Context, d consumer.Decision) (due time.Time, again bool)
}

// A Returner is a Message that can be given back to its broker. Others are dropped when their assignment is halted.
type Returner interface {
	// GiveBack has the broker deliver the message again; if due is not zero, not before that. It may wait.
	GiveBack(ctx context.Context, due time.Time)
}

// An Item is a message in the loop. It is a part of the transport's message, which sets the exported fields before the
// loop gets it.
type Item struct {
	Message Message // that it is a part of
	Key     string  // messages of an assignment with the same one run one after the other; empty: no order
	Last    bool    // giving it back would lose it: it may start until the context of the handlers ends

	of       *Assignment
	stopping <-chan struct{} // closed: it may not start any more
	tries    int
	started  bool        // its handler has been called in this try
	place    int         // in Assignment.inFlight
	due      time.Time   // when its next try is due
	timer    *time.Timer // of its wait for that
}

// Tries is how often the message was tried here.
func (i *Item) Tries() int { return i.tries }

// Work is what is done with messages: one of Each, Batch and Source.
type Work struct {
	Once    *consumer.Processor
	Handler string // its name; empty for a Source

	Each    func(ctx context.Context, m Message) error
	Batch   func(ctx context.Context, ms []Message) []error
	Batches Batches // of Batch
	Source  consumer.SourceHandler
}

// A Loop has messages handled that a transport receives, as many at once as it has slots, and decisions carried out. A
// message has a slot from when it starts until the decision about it; one that waits to be tried again has none.
type Loop struct {
	work    Work
	batcher *batcher // nil: there are no batches
	pool    batch.Pool
	waits   *oncemill.WaitLimit
	until   func(time.Time) time.Duration // time.Until; the clock may be set

	mu       sync.Mutex
	free     int     // slots
	ready    []*Item // may start when there is a slot, in this order
	spare    []*Item // memory for ready
	starting bool    // somebody starts what is ready
	acks     []*Item // to be acknowledged
	acked    []*Item // memory for acks
	acking   bool    // somebody acknowledges
}

// New returns a loop with so many slots.
func New(work Work, slots int) *Loop {
	l := &Loop{
		work: work, free: slots, until: time.Until,
		waits: oncemill.NewWaitLimit(max(1, slots/2)), // others need the room
	}
	if work.Batch != nil {
		work.Batches.Most = min(work.Batches.Most, slots) // what waits for its batch has a slot: more would never come
		l.batcher = &batcher{
			Batches: work.Batches, atOnce: max(1, slots/work.Batches.Most), pool: &l.pool, run: l.runBatch,
		}
	}
	return l
}

// Wait waits for the loop's goroutines. Call it when all assignments have ended.
func (l *Loop) Wait() { l.pool.Wait() }

// fill starts what is ready, as long as there are slots. One goroutine does so at a time, or a handler that answers at
// once would nest in the one before it.
func (l *Loop) fill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starting {
		return
	}
	l.starting = true
	for n := min(l.free, len(l.ready)); n > 0; n = min(l.free, len(l.ready)) {
		now := l.ready[:n]
		if n == len(l.ready) {
			l.ready, l.spare = l.spare, l.ready[:0]
		} else {
			l.ready = l.ready[n:]
		}
		l.free -= n
		for _, i := range now {
			i.of.running++
		}
		l.mu.Unlock()
		l.start(now)
		l.mu.Lock()
		clear(now)
	}
	l.starting = false
}

// start starts messages that have slots. Here, and in runBatch, Processors and handlers of a Source get their work.
func (l *Loop) start(items []*Item) {
	var batch []offered
	var each []*Item
	var deliveries []consumer.Delivery // of each
	for _, i := range items {
		if closed(i.stopping) {
			l.wait(i, time.Time{})
			continue
		}
		d, due := i.Message.Delivery(i.tries)
		if !due.IsZero() && l.until(due) > 0 {
			l.wait(i, due)
			continue
		}
		i.tries++
		i.started = false
		d.Handler, d.Stopping, d.WaitLimit = l.work.Handler, i.stopping, l.waits
		switch {
		case l.work.Source != nil:
			l.work.Source(i.of.ctx, d, i.decided)
		case l.batcher != nil:
			batch = append(batch, offered{Item: i, delivery: d})
		default:
			if each == nil {
				each, deliveries = make([]*Item, 0, len(items)), make([]consumer.Delivery, 0, len(items))
			}
			each, deliveries = append(each, i), append(deliveries, d)
		}
	}
	if batch != nil {
		for _, i := range l.batcher.add(batch) {
			l.wait(i, time.Time{})
		}
	}
	for n := 0; len(each) > 0; each, deliveries = each[n:], deliveries[n:] {
		of := each[0].of
		for n = 1; n < len(each) && each[n].of == of; {
			n++
		}
		l.startEach(of.ctx, each[:n], deliveries[:n])
	}
}

// startEach starts messages of one assignment.
func (l *Loop) startEach(ctx context.Context, items []*Item, deliveries []consumer.Delivery) {
	l.work.Once.StartAll(ctx, deliveries, func(ctx context.Context, n int) error { return items[n].handle(ctx) },
		func(n int, d consumer.Decision) {
			i := items[n]
			items[n], deliveries[n] = nil, consumer.Delivery{} // a neighbour may go on for long
			i.decided(d)
		})
}

// errStopping keeps a handler from starting whose assignment was halted while its message was claimed. The claim is
// given back at once, and counts as no attempt.
var errStopping = oncemill.NoEffect(oncemill.Uncounted(oncemill.RetryAfter(0,
	errors.New("worker: the message is being given back"))))

// handle calls the handler, if the message may still start or its handler was called in this try already: a transaction
// may be repeated.
func (i *Item) handle(ctx context.Context) error {
	if !i.started && closed(i.stopping) {
		return errStopping
	}
	i.started = true
	return i.of.loop.work.Each(ctx, i.Message)
}

// decided carries out the decision about a message. It waits for nothing.
func (i *Item) decided(d consumer.Decision) {
	l := i.of.loop
	if d.Action != consumer.Ack {
		l.carryOut(i, d) // which puts the decision on the heap
		return
	}
	l.mu.Lock()
	l.acks = append(l.acks, i)
	begin := !l.acking
	l.acking = true
	l.mu.Unlock()
	if begin {
		l.pool.Run((*acker)(l))
	}
}

// An acker acknowledges messages beside the goroutine that stores outcomes: a connection to the broker that stands
// still must keep no outcome from the store.
type acker Loop

// Do acknowledges all that there are.
func (a *acker) Do() {
	l := (*Loop)(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.acks) > 0 {
		now := l.acks
		l.acks = l.acked
		l.mu.Unlock()
		for _, i := range now {
			i.Message.Acked(i.of.ctx)
			l.leave(i, true)
		}
		clear(now)
		l.mu.Lock()
		l.acked = now[:0]
	}
	l.acking = false
}

// carryOut carries out a decision that is not an ack.
func (l *Loop) carryOut(i *Item, d consumer.Decision) {
	l.leaveSlot(i)
	l.fill()
	l.pool.Go(func() {
		if due, again := i.Message.Decided(i.of.ctx, d); again {
			l.await(i, due)
		} else {
			l.leave(i, false)
		}
	})
}

// wait has a message wait that has a slot, which it does not need meanwhile.
func (l *Loop) wait(i *Item, due time.Time) {
	l.leaveSlot(i)
	l.await(i, due)
}

func (l *Loop) leaveSlot(i *Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free++
	i.of.running--
}

// lookAgain is after what time a wait looks at the clock again, which may have been set.
const lookAgain = time.Minute

// await has a message tried again when it is due, or given up if it may not start any more.
func (l *Loop) await(i *Item, due time.Time) {
	l.mu.Lock()
	if i.due = due; closed(i.stopping) {
		l.giveUp(i)
	} else {
		i.of.waiting[i] = struct{}{}
		i.timer = time.AfterFunc(min(l.until(due), lookAgain), func() { l.look(i) })
	}
	l.mu.Unlock()
	l.fill()
}

// look looks whether a message that waits is due.
func (l *Loop) look(i *Item) {
	l.mu.Lock()
	if _, waits := i.of.waiting[i]; waits {
		if left := l.until(i.due); left > 0 {
			i.timer.Reset(min(left, lookAgain))
		} else {
			delete(i.of.waiting, i)
			l.ready = append(l.ready, i)
		}
	}
	l.mu.Unlock()
	l.fill()
}

// giveUp gives a message back that may not start any more, or drops it. The loop is locked.
func (l *Loop) giveUp(i *Item) {
	back, can := i.Message.(Returner)
	if !can {
		i.of.release()
		return
	}
	l.pool.Go(func() {
		back.GiveBack(i.of.ctx, i.due)
		l.leave(i, false)
	})
}

// leave forgets a message that is settled or given back, and starts what comes after it.
func (l *Loop) leave(i *Item, slot bool) {
	a := i.of
	l.mu.Lock()
	if slot {
		l.free++
		a.running--
	}
	last := len(a.inFlight) - 1
	moved := a.inFlight[last]
	a.inFlight[i.place], a.inFlight[last] = moved, nil
	moved.place = i.place
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
	if a.room++; len(a.queue) > 0 {
		a.take()
	}
	if a.pending--; a.pending == 0 {
		a.end()
	}
	more := l.free > 0 && len(l.ready) > 0
	l.mu.Unlock()
	a.left()
	if more {
		l.fill()
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
