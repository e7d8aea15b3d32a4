package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// A gate lets everybody pass once a check has succeeded. Until then there is one check at a time.
type gate struct {
	passed     atomic.Bool
	turn       chan struct{} // has room for one
	background *background
}

func newGate(b *background) *gate { return &gate{turn: make(chan struct{}, 1), background: b} }

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
	g.background.start(func() { result <- g.try(ctx, check) })
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

// background has the goroutines of a store. Other than a sync.WaitGroup it may be waited for while further ones begin:
// at shutdown heartbeats may go on. The zero value is ready to use.
type background struct {
	mu  sync.Mutex
	now *sync.WaitGroup // what began since it was last waited for, and that wait; nil: nothing yet
}

func (b *background) start(work func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now == nil {
		b.now = new(sync.WaitGroup)
	}
	b.now.Go(work)
}

// wait returns when all that began before has ended.
func (b *background) wait() {
	b.mu.Lock()
	before, now := b.now, new(sync.WaitGroup)
	now.Add(1)
	b.now = now
	b.mu.Unlock()
	if before != nil {
		before.Wait()
	}
	now.Done()
}
