package shop

import (
	"io"
	"sync"
	"time"
)

// progress prints a line now and then until the function that it returns is called.
func (r *run) progress() (stop func()) {
	end := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		placed, charges := int64(-1), int64(-1)
		for start := time.Now(); ; {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			if p, c := r.placed.Load(), r.ledger.charges.Load(); p != placed || c != charges { // silence while nothing happens
				placed, charges = p, c
				say(r.out, "%4.0f s  placed %d, charged %d\n", time.Since(start).Seconds(), placed, charges)
			}
		}
	})
	return func() {
		close(end)
		ended.Wait()
	}
}

// shared lets several goroutines write.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
