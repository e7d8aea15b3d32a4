package franz

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/consumer"
)

// places are those of MaxInFlight, for records whose handlers run or are about to. They are given in the order in which
// they were asked for.
type places struct {
	mu    sync.Mutex
	free  int
	ready []starter
	given int // places to the first of them
}

// A starter is a record, which is started when there is a place. If start returns true, the place must be left
// afterwards.
type starter interface{ start() bool }

// add asks for a place: fill starts s when there is one.
func (p *places) add(s starter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, s)
}

// fill gives free places away.
func (p *places) fill() {
	for s := p.next(); s != nil; s = p.next() {
		if !s.start() {
			p.leave()
		}
	}
}

func (p *places) next() starter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 || len(p.ready) == 0 {
		return nil
	}
	p.free--
	s := p.ready[p.given]
	if p.given++; 2*p.given >= len(p.ready) { // not each time: there may be many
		p.ready, p.given = slices.Delete(p.ready, 0, p.given), 0
	}
	return s
}

// leave makes a place free, for the next fill.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
}

// running counts what runs. After halt nothing more begins.
type running struct {
	context func() context.Context                // of the handlers
	shut    func()                                // ends halted
	halted  <-chan struct{}                       // closed with halt
	onHalt  func(do func()) (prevent func() bool) // has something done at halt; prevent reports false if it is too late
	ended   chan struct{}                         // closed when after halt nothing runs any more

	mu sync.Mutex
	n  int
}

func newRunning(handlers context.Context) *running {
	open, shut := context.WithCancel(context.Background())
	return &running{
		context: func() context.Context { return handlers }, shut: shut, halted: open.Done(),
		ended:  make(chan struct{}),
		onHalt: func(do func()) func() bool { return context.AfterFunc(open, do) },
	}
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
			once.Start(ctx, d, func(ctx context.Context) error {
				if !r.starts() {
					return errStopping
				}
				return handle(ctx, r.Record)
			}, r.decided)
		}
	}
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
