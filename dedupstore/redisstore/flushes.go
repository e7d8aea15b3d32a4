package redisstore

import "sync"

// Flushes counts the goroutines of a store. Other than a sync.WaitGroup it may be waited for while further ones begin:
// at shutdown heartbeats may go on. The zero value is ready to use.
type flushes struct {
	mu   sync.Mutex
	now  int
	none chan struct{} // closed when there is none any more; nil: nobody waits
}

func (f *flushes) start(work func()) {
	f.mu.Lock()
	f.now++
	f.mu.Unlock()
	go func() {
		defer f.done()
		work()
	}()
}

func (f *flushes) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now--
	if f.now == 0 && f.none != nil {
		close(f.none)
		f.none = nil
	}
}

// wait returns at a moment at which there is none.
func (f *flushes) wait() {
	f.mu.Lock()
	if f.now > 0 && f.none == nil {
		f.none = make(chan struct{})
	}
	none := f.none
	f.mu.Unlock()
	if none != nil {
		<-none
	}
}
