package redisstore

import (
	"context"
	"sync/atomic"
)

// A gate lets everybody pass once a check has succeeded. Until then there is one check at a time.
type gate struct {
	passed atomic.Bool
	turn   chan struct{} // has room for one
}

func newGate() *gate { return &gate{turn: make(chan struct{}, 1)} }

// pass returns nil when a check has succeeded, the error of the caller's own check, or the context's.
func (g *gate) pass(ctx context.Context, check func(context.Context) error) error {
	if g.passed.Load() {
		return nil
	}
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.turn }()
	if g.passed.Load() {
		return nil
	}
	err := check(ctx)
	g.passed.Store(err == nil)
	return err
}
