package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// A gate lets everybody pass once a check has succeeded. Until then one caller at a time makes the check, and those who
// wait share its result: a server that is down is not asked once a caller.
type gate struct {
	passed atomic.Bool
	deaf   bool    // the client does not heed contexts
	checks flushes // for that

	mu      sync.Mutex
	current *attempt
}

type attempt struct {
	done      chan struct{}
	err       error
	abandoned bool // its maker's context ended: the error says nothing about the server
}

// pass returns nil when a check has succeeded, the check's error, or the context's.
func (g *gate) pass(ctx context.Context, check func(context.Context) error) error {
	for !g.passed.Load() {
		if err := ctx.Err(); err != nil {
			return err
		}
		a, mine := g.join()
		switch {
		case a == nil:
			return nil
		case mine && !g.deaf:
			return g.try(ctx, a, check)
		case mine:
			g.checks.start(func() { _ = g.try(ctx, a, check) }) // its error is the attempt's
		}
		select {
		case <-ctx.Done():
			if mine {
				g.leave(a) // it may never end, and the next caller makes another
			}
			return ctx.Err()
		case <-a.done:
		}
		if a.err != nil && !a.abandoned {
			return a.err
		}
	}
	return nil
}

// join returns the attempt that is under way, or a new one that the caller has to make, or nil if one has succeeded
// meanwhile.
func (g *gate) join() (a *attempt, mine bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.passed.Load() {
		return nil, false
	}
	if g.current == nil {
		g.current, mine = &attempt{done: make(chan struct{}), abandoned: true}, true
	}
	return g.current, mine
}

func (g *gate) try(ctx context.Context, a *attempt, check func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil { // in a hook of the client
			err = fmt.Errorf("the client panicked: %v", p)
			a.err, a.abandoned = err, false
		}
		g.leave(a)
		close(a.done)
	}()
	a.err = check(ctx)
	a.abandoned = a.err != nil && ctx.Err() != nil
	if a.err == nil {
		g.passed.Store(true)
	}
	return a.err
}

// leave lets the next caller make an attempt of its own.
func (g *gate) leave(a *attempt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current == a {
		g.current = nil
	}
}
