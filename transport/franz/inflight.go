package franz

import (
	"context"
	"sync"
	"time"

	"github.com/oncemill/oncemill/consumer"
)

// places are those of MaxInFlight, for records whose handlers run or are about to. They are given in the order in which
// they were asked for.
type places struct {
	mu    sync.Mutex
	free  int
	ready []func() bool
}

// add asks for a place: fill calls start when there is one. If start returns true, the place must be left afterwards.
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
	shut   func()                                // ends halted
	halted <-chan struct{}                       // closed with halt
	onHalt func(do func()) (prevent func() bool) // has something done at halt; prevent reports false if it is too late
	ended  chan struct{}                         // closed when after halt nothing runs any more

	mu sync.Mutex
	n  int
}

func newRunning() *running {
	open, shut := context.WithCancel(context.Background())
	return &running{shut: shut, halted: open.Done(), ended: make(chan struct{}),
		onHalt: func(do func()) func() bool { return context.AfterFunc(open, do) }}
}

// begin reports false after halt. Otherwise end has to follow.
func (r *running) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if closed(r.halted) {
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

// halt stops new runs. Those that run go on.
func (r *running) halt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !closed(r.halted) {
		r.shut()
		r.look()
	}
}

// look looks whether it was the last. It is locked.
func (r *running) look() {
	if r.n == 0 && closed(r.halted) {
		close(r.ended)
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

// A process begins to handle a record, and tells it what was decided. It waits for nothing. The context is that of the
// handler.
type process func(ctx context.Context, r *record, d consumer.Delivery)

// guarded runs a handler under a Processor: claims of records that are offered together travel together.
func guarded(once *consumer.Processor, name string, handle Handler) func(*handling) process {
	return func(*handling) process {
		return func(ctx context.Context, r *record, d consumer.Delivery) {
			d.Handler = name
			once.Claim(ctx, d, func(claimed context.Context, t *consumer.Ticket) {
				r.pool.Go(func() { r.run(ctx, claimed, t, handle) })
			})
		}
	}
}

// run runs the handler with its claim in hand, in the context of that, or gives it back if nothing starts any more.
// While the ticket waits, for a busy key or for the store, that ends the wait.
func (r *record) run(ctx, claimed context.Context, t *consumer.Ticket, handle Handler) {
	if closed(r.halted) {
		t.GiveBack(claimed)
		r.decided(ctx, consumer.Decision{Action: consumer.RetryLater, Err: errStopping})
		return
	}
	claimed, cancel := context.WithCancelCause(claimed)
	prevent := r.onHalt(func() { cancel(errStopping) })
	started := false // a transaction may be repeated
	t.Process(claimed, func(ctx context.Context) error {
		if started = started || prevent(); !started {
			return errStopping
		}
		return handle(ctx, r.Record)
	}, func(d consumer.Decision) {
		prevent()
		cancel(nil)
		r.decided(ctx, d)
	})
}

// lookAgain is after what time a wait for a time by the clock looks at it again: it may have been set.
const lookAgain = time.Minute

// after calls ready when nothing remains to be waited for, unless halted is closed by then.
func after(halted <-chan struct{}, remains func() time.Duration, ready func()) {
	d := remains()
	switch {
	case closed(halted):
	case d <= 0:
		ready()
	default:
		time.AfterFunc(min(d, lookAgain), func() { after(halted, remains, ready) })
	}
}
