// Package worker has the consumer loop that the workers and sources of all transports run.
package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/batch"
)

// A Message is one that a transport has received. Its type embeds an Item, where the loop keeps what it knows of it.
type Message interface {
	// Delivery is what a Processor gets for the next try, and when that is due; zero: now. The loop adds the handler's
	// name, and what it knows of the drain. The header belongs to the handler.
	Delivery() (d consumer.Delivery, due time.Time)

	// Acked acknowledges the message. It must not wait.
	Acked(ctx context.Context)

	// Decided carries out a decision that is not an ack, and may wait. If it reports again, the message is tried again
	// here when it is due.
	Decided(ctx context.Context, d consumer.Decision) (due time.Time, again bool)

	// Left is called when a message that was settled or given back is not in flight any more. It must not wait.
	Left()

	item() *Item
}

// A Returner is a Message that can be given back to its broker. Others are dropped when their assignment is halted.
type Returner interface {
	// GiveBack has the broker deliver the message again; if due is not zero, not before that. It may wait.
	GiveBack(ctx context.Context, due time.Time)
}

// An Item is the loop's part of a message.
type Item struct {
	Key  string // messages of an assignment with the same one run one after the other; empty: no order
	Last bool   // giving it back would lose it: it may start until the context of the handlers ends

	assignment *Assignment
	tries      int
	started    bool        // its handler has been called in this try
	place      int         // in Assignment.inFlight
	due        time.Time   // when it is to be tried again
	timer      *time.Timer // of its wait for that
}

func (i *Item) item() *Item { return i }

// Tries is how often the message was tried here.
func (i *Item) Tries() int { return i.tries }

// stopping is closed when the message may not start any more.
func (i *Item) stopping() <-chan struct{} {
	if i.Last {
		return i.assignment.ctx.Done()
	}
	return i.assignment.halted
}

// starts reports whether the handler may be called now, or has been in this try: a transaction may be repeated, and so
// may a batch.
func (i *Item) starts() bool {
	i.started = i.started || !closed(i.stopping())
	return i.started
}

// errStopping keeps a handler from starting whose assignment was halted while its message was claimed. The claim is
// given back at once, and counts as no attempt.
var errStopping = oncemill.NoEffect(oncemill.Uncounted(oncemill.RetryAfter(0,
	errors.New("worker: the message is being given back"))))

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
	free     int       // slots
	ready    []Message // may start when there is a slot, in this order
	spare    []Message // memory for ready
	starting bool      // somebody starts what is ready
}

// New returns a loop with so many slots.
func New(work Work, slots int) *Loop {
	l := &Loop{
		work: work, free: slots, until: time.Until,
		waits: oncemill.NewWaitLimit(max(1, slots/2)), // others need the room
	}
	if work.Batch != nil {
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
		for _, m := range now {
			m.item().assignment.running++
		}
		l.mu.Unlock()
		l.start(now)
		l.mu.Lock()
		clear(now)
	}
	l.starting = false
}

// start starts messages that have slots. Here, and in runBatch, Processors and handlers of a Source get their work.
func (l *Loop) start(messages []Message) {
	var each []Message
	var deliveries []consumer.Delivery
	for _, m := range messages {
		i := m.item()
		if closed(i.stopping()) {
			l.wait(m, time.Time{})
			continue
		}
		d, due := m.Delivery()
		if !due.IsZero() && l.until(due) > 0 {
			l.wait(m, due)
			continue
		}
		i.tries++
		i.started = false
		d.Handler, d.Stopping, d.WaitLimit = l.work.Handler, i.stopping(), l.waits
		switch ctx := i.assignment.ctx; {
		case l.work.Source != nil:
			l.work.Source(ctx, d, func(d consumer.Decision) { l.decided(m, d) })
		case l.batcher != nil:
			l.batcher.add(offered{m, d})
		default:
			if each == nil {
				each, deliveries = make([]Message, 0, len(messages)), make([]consumer.Delivery, 0, len(messages))
			}
			each, deliveries = append(each, m), append(deliveries, d)
		}
	}
	for n := 0; len(each) > 0; each, deliveries = each[n:], deliveries[n:] {
		a := each[0].item().assignment
		n = slices.IndexFunc(each, func(m Message) bool { return m.item().assignment != a })
		if n < 0 {
			n = len(each)
		}
		l.startEach(a.ctx, each[:n], deliveries[:n])
	}
}

// startEach starts messages of one assignment.
func (l *Loop) startEach(ctx context.Context, messages []Message, deliveries []consumer.Delivery) {
	l.work.Once.StartAll(ctx, deliveries, func(ctx context.Context, i int) error {
		if !messages[i].item().starts() {
			return errStopping
		}
		return l.work.Each(ctx, messages[i])
	}, func(i int, d consumer.Decision) { l.decided(messages[i], d) })
}

// decided carries out the decision about a message. It waits for nothing.
func (l *Loop) decided(m Message, d consumer.Decision) {
	ctx := m.item().assignment.ctx
	if d.Action == consumer.Ack {
		m.Acked(ctx)
		l.leave(m, true)
		return
	}
	l.leaveSlot(m)
	l.fill()
	l.pool.Go(func() {
		if due, again := m.Decided(ctx, d); again {
			l.await(m, due)
		} else {
			l.leave(m, false)
		}
	})
}

// wait has a message wait that has a slot, which it does not need meanwhile.
func (l *Loop) wait(m Message, due time.Time) {
	l.leaveSlot(m)
	l.await(m, due)
}

func (l *Loop) leaveSlot(m Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free++
	m.item().assignment.running--
}

// lookAgain is after what time a wait looks at the clock again, which may have been set.
const lookAgain = time.Minute

// await has a message tried again when it is due, or given up if it may not start any more.
func (l *Loop) await(m Message, due time.Time) {
	i := m.item()
	l.mu.Lock()
	if i.due = due; closed(i.stopping()) {
		l.giveUp(m)
	} else {
		i.assignment.waiting[m] = struct{}{}
		i.timer = time.AfterFunc(min(l.until(due), lookAgain), func() { l.look(m) })
	}
	l.mu.Unlock()
	l.fill()
}

// look looks whether a message that waits is due.
func (l *Loop) look(m Message) {
	i := m.item()
	l.mu.Lock()
	if _, waits := i.assignment.waiting[m]; waits {
		if left := l.until(i.due); left > 0 {
			i.timer.Reset(min(left, lookAgain))
		} else {
			delete(i.assignment.waiting, m)
			l.ready = append(l.ready, m)
		}
	}
	l.mu.Unlock()
	l.fill()
}

// giveUp gives a message back that may not start any more, or drops it. The loop is locked.
func (l *Loop) giveUp(m Message) {
	a := m.item().assignment
	back, can := m.(Returner)
	if !can {
		a.release()
		return
	}
	l.pool.Go(func() {
		back.GiveBack(a.ctx, m.item().due)
		l.leave(m, false)
	})
}

// leave forgets a message that is settled or given back, and starts what comes after it.
func (l *Loop) leave(m Message, slot bool) {
	i := m.item()
	l.mu.Lock()
	if slot {
		l.free++
		i.assignment.running--
	}
	i.assignment.leave(i)
	more := l.free > 0 && len(l.ready) > 0
	l.mu.Unlock()
	m.Left()
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
