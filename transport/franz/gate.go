package franz

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
)

// A gate is where records pass on the way to their handlers, until it is shut. What runs then goes on.
type gate struct {
	halted chan struct{} // closed when nothing more is to be started

	mu   sync.Mutex
	idle map[*flight]struct{} // offered to the guard, which has not started the handler yet
}

func newGate() gate { return gate{halted: make(chan struct{}), idle: map[*flight]struct{}{}} }

// A flight is one offer of a record to the guard.
type flight struct{ cancel context.CancelCauseFunc }

func (g *gate) isHalted() bool {
	select {
	case <-g.halted:
		return true
	default:
		return false
	}
}

// offer has a record decided, when there is a slot for it. It reports false if the gate was shut before.
func (g *gate) offer(ctx context.Context, slots chan struct{}, process process, d consumer.Delivery,
	rec *kgo.Record) (consumer.Decision, bool) {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-g.halted:
		return consumer.Decision{}, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &flight{cancel}
	if !g.enter(f) {
		return consumer.Decision{}, false
	}
	defer g.leave(f)
	d.Header = maps.Clone(d.Header) // which the handler may change
	return process(ctx, d, rec, func() error { return g.start(f) }), true
}

func (g *gate) enter(f *flight) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isHalted() {
		return false
	}
	g.idle[f] = struct{}{}
	return true
}

func (g *gate) leave(f *flight) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.idle, f)
}

// start lets a handler run, unless the gate is shut.
func (g *gate) start(f *flight) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isHalted() {
		return oncemill.NoEffect(stoppingError{})
	}
	delete(g.idle, f)
	return nil
}

// wait reports false if the gate is shut before the time is over.
func (g *gate) wait(d time.Duration) bool {
	if d <= 0 {
		return !g.isHalted()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-g.halted:
		return false
	}
}

// lookAgain is how long who waits for a time by the clock waits at most before looking at it again: it may have been
// set.
const lookAgain = time.Minute

// waitFor waits for a time. It reports false if the gate is shut before.
func (g *gate) waitFor(due time.Time) bool {
	return g.waitWhile(func() time.Duration { return time.Until(due) })
}

// waitWhile waits as long as something remains.
func (g *gate) waitWhile(remains func() time.Duration) bool {
	for d := remains(); d > 0; d = remains() {
		if !g.wait(min(d, lookAgain)) {
			return false
		}
	}
	return !g.isHalted()
}

// shut starts nothing more. The gate is locked, and was not shut.
func (g *gate) shut() {
	close(g.halted)
	for f := range g.idle {
		f.cancel(stoppingError{})
	}
}
