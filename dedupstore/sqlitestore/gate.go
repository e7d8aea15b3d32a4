package sqlitestore

import (
	"context"
	"slices"
	"sync"
)

// A gate lets one writer of this store at a time try for the database's write lock: first flushes of short operations,
// then the others, in the order in which they came.
type gate struct {
	mu      sync.Mutex
	taken   bool
	flushes []chan struct{}
	others  []chan struct{}
}

// enter waits for the writer's turn, which ends with leave. It returns the cause of ctx if that ends before.
func (g *gate) enter(ctx context.Context, flush bool) error {
	g.mu.Lock()
	if !g.taken {
		g.taken = true
		g.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	if flush {
		g.flushes = append(g.flushes, turn)
	} else {
		g.others = append(g.others, turn)
	}
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	is := func(c chan struct{}) bool { return c == turn }
	waited := len(g.flushes) + len(g.others)
	g.flushes, g.others = slices.DeleteFunc(g.flushes, is), slices.DeleteFunc(g.others, is)
	granted := len(g.flushes)+len(g.others) == waited
	g.mu.Unlock()
	if granted { // at the same moment
		g.leave()
	}
	return context.Cause(ctx)
}

// leave gives the turn to the next.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case len(g.flushes) > 0:
		close(g.flushes[0])
		g.flushes = g.flushes[1:]
	case len(g.others) > 0:
		close(g.others[0])
		g.others = g.others[1:]
	default:
		g.taken = false
	}
}
