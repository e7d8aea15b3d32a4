package franz

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/worker"
)

// places are those of MaxInFlight, for records whose handlers run or are about to. They are given in the order in which
// they were asked for.
type places struct {
	mu    sync.Mutex
	free  int
	ready []func() bool
}

// add asks for a place: fill calls start when there is one. If that returns true, the place is to be left.
func (p *places) add(start func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, start)
}

// fill gives free places away.
func (p *places) fill() {
	for start := p.next(); start != nil; start = p.next() {
		if !start() {
			p.leave()
		}
	}
}

func (p *places) next() func() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 || len(p.ready) == 0 {
		return nil
	}
	p.free--
	start := p.ready[0]
	p.ready[0] = nil
	p.ready = p.ready[1:]
	return start
}

// leave makes a place free, for the next fill.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
}

// running counts what runs. After halt nothing more begins.
type running struct {
	open  context.Context // ends with halt
	shut  context.CancelFunc
	ended chan struct{} // closed when after halt nothing runs any more

	mu sync.Mutex
	n  int
}

func newRunning() *running {
	r := &running{ended: make(chan struct{})}
	r.open, r.shut = context.WithCancel(context.Background())
	return r
}

func (r *running) halted() bool { return r.open.Err() != nil }

// begin reports false after halt. Otherwise end has to follow.
func (r *running) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.halted() {
		return false
	}
	r.n++
	return true
}

func (r *running) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n--
	r.look()
}

// halt lets nothing more begin. What runs goes on.
func (r *running) halt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.halted() {
		r.shut()
		r.look()
	}
}

// over reports whether after halt nothing runs any more.
func (r *running) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// look looks whether it was the last. It is locked.
func (r *running) look() {
	if r.n == 0 && r.halted() {
		close(r.ended)
	}
}

// An offer is one try to have a record handled.
type offer struct {
	ctx      context.Context // of the handler
	open     context.Context // when it has ended, no handler starts any more
	pool     *worker.Pool
	record   *kgo.Record
	delivery consumer.Delivery
	done     func(consumer.Decision) // gets what to do with the record, once; it waits for nothing
}

// A process begins to handle a record. It waits for nothing.
type process func(o *offer)

// guarded runs a handler under a Processor: claims of records that are offered together travel together.
func guarded(once *consumer.Processor, name string, handle Handler) process {
	return func(o *offer) {
		o.delivery.Handler = name
		once.Claim(o.ctx, o.delivery, func(t *consumer.Ticket) {
			o.pool.Go(func() { o.run(t, handle) })
		})
	}
}

// run runs the handler with its claim in hand, or gives that back if nothing starts any more. While the ticket waits,
// for a busy key or for the store, that ends the wait.
func (o *offer) run(t *consumer.Ticket, handle Handler) {
	if o.open.Err() != nil {
		t.GiveBack(t.Context())
		o.done(consumer.Decision{Action: consumer.RetryLater, Err: stoppingError{}})
		return
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stays := context.AfterFunc(o.open, func() { cancel(stoppingError{}) })
	started := false // a transaction may be repeated
	t.Process(ctx, func(ctx context.Context) error {
		if started = started || stays(); !started {
			return oncemill.NoEffect(stoppingError{})
		}
		return handle(ctx, o.record)
	}, func(d consumer.Decision) {
		stays()
		cancel(nil)
		o.done(d)
	})
}

// lookAgain is after what time a wait for a time by the clock looks at it again: it may have been set.
const lookAgain = time.Minute

// after calls ready when nothing remains to be waited for, unless ctx has ended by then.
func after(ctx context.Context, remains func() time.Duration, ready func()) {
	d := remains()
	switch {
	case ctx.Err() != nil:
	case d <= 0:
		ready()
	default:
		time.AfterFunc(min(d, lookAgain), func() { after(ctx, remains, ready) })
	}
}
