package batch

import "sync"

// Background has goroutines. Other than a sync.WaitGroup it may be waited for while further ones begin: at shutdown
// heartbeats may go on. The zero value is ready to use.
type Background struct {
	mu  sync.Mutex
	now *sync.WaitGroup // what began since it was last waited for, and that wait; nil: nothing yet
}

// Go does work in a goroutine.
func (b *Background) Go(work func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current().Go(work)
}

// Enter counts the caller's goroutine, until it calls Done of what it gets.
func (b *Background) Enter() *sync.WaitGroup {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.current()
	now.Add(1)
	return now
}

// current has what begins now. It is locked.
func (b *Background) current() *sync.WaitGroup {
	if b.now == nil {
		b.now = new(sync.WaitGroup)
	}
	return b.now
}

// Wait returns when all that began before has ended.
func (b *Background) Wait() {
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
