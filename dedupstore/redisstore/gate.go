package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/oncemill/oncemill/internal/batch"
)

// A gate lets everybody pass once a check has succeeded. Until then there is one check at a time.
type gate struct {
	passed     atomic.Bool
	turn       chan struct{} // has room for one
	background *batch.Background
}

func newGate(b *batch.Background) *gate { return &gate{turn: make(chan struct{}, 1), background: b} }

// pass returns nil when a check has succeeded, the error of the caller's own check, or the context's. Some clients do
// not heed contexts: a check may go on when its caller has gone, and the next caller makes another.
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
	result := make(chan error, 1)
	g.background.Go(func() { result <- g.try(ctx, check) })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) try(ctx context.Context, check func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil { // in a hook of the client
			err = fmt.Errorf("redisstore: check: %w: %v", errPanic, p)
		}
	}()
	if err = check(ctx); err == nil {
		g.passed.Store(true)
	}
	return err
}
