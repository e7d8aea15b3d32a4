package sqlitestore

import "context"

// A gate lets one writer of this store at a time try for the database's write lock, in the order in which they came. So
// a crowd does not poll, and short operations do not wait for all handlers that wait.
type gate struct {
	line chan struct{} // the first of the long ones is in it
	turn chan struct{} // the writer that has the turn is in it
}

func newGate() gate { return gate{line: make(chan struct{}, 1), turn: make(chan struct{}, 1)} }

// enter waits for the writer's turn, which ends with leave. It returns the cause of ctx if that ends before.
func (g *gate) enter(ctx context.Context) error { return put(ctx, g.turn) }

// enterLast is enter for handlers and for work that is not urgent. When the turn of the first in line comes, it lets
// those go first that wait in the other line, once. So nobody waits for more than one handler, and no handler waits for
// ever.
func (g *gate) enterLast(ctx context.Context) error {
	if err := put(ctx, g.line); err != nil {
		return err
	}
	defer func() { <-g.line }()
	if err := g.enter(ctx); err != nil {
		return err
	}
	g.leave()
	return g.enter(ctx)
}

// leave gives the turn to the next.
func (g *gate) leave() { <-g.turn }

// put sends to a channel of the gate; those who wait do so in their order.
func put(ctx context.Context, to chan struct{}) error {
	select {
	case to <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
