package sqlitestore

import (
	"context"
	"sync/atomic"
)

// A gate lets one writer of this store at a time try for the database's write lock. A flush of short operations goes
// before the others, which go in the order in which they came. There is one flush at a time.
type gate struct {
	line     chan struct{} // the first of the others is in it
	turn     chan struct{} // whoever has the turn is in it
	flushing atomic.Bool   // a flush waits
}

// enter waits for the writer's turn, which ends with leave. It returns the cause of ctx if that ends before.
func (g *gate) enter(ctx context.Context, flush bool) error {
	if flush {
		g.flushing.Store(true)
		defer g.flushing.Store(false)
	} else {
		select {
		case g.line <- struct{}{}:
			defer func() { <-g.line }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for {
		select {
		case g.turn <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if flush || !g.flushing.Load() {
			return nil
		}
		g.leave() // to the flush
	}
}

// leave gives the turn to the next.
func (g *gate) leave() { <-g.turn }
