package batch

import "sync"

// Background counts goroutines. Other than a sync.WaitGroup it may be waited for while further ones begin: at shutdown
// heartbeats may go on. The zero value is ready to use.
type Background struct {
	mu   sync.Mutex
	now  int
	none chan struct{} // closed when there is none any more; nil: nobody waits
}

// Go does work in a goroutine.
func (b *Background) Go(work func()) {
	b.mu.Lock()
	b.now++
	b.mu.Unlock()
	go func() {
		defer b.done()
		work()
	}()
}

func (b *Background) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now--
	if b.now == 0 && b.none != nil {
		close(b.none)
		b.none = nil
	}
}

// Wait returns at a moment at which there is none.
func (b *Background) Wait() {
	b.mu.Lock()
	if b.now > 0 && b.none == nil {
		b.none = make(chan struct{})
	}
	none := b.none
	b.mu.Unlock()
	if none != nil {
		<-none
	}
}
