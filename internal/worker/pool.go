package worker

import "sync"

// A Pool runs work in goroutines that wait for more of it until Wait: a new one for each piece would grow its stack
// each time. How much there is at a time is up to the caller. The zero value is ready to use. It is safe for concurrent
// use.
type Pool struct {
	mu      sync.Mutex
	idle    []chan func() // of goroutines without work
	ending  bool
	running sync.WaitGroup
}

// Go does work in a goroutine. It must not be called when Wait has returned, until the pool is used again.
func (p *Pool) Go(work func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		p.idle[n-1] <- work // it has room
		p.idle = p.idle[:n-1]
		return
	}
	p.running.Go(func() {
		more := make(chan func(), 1)
		for do := work; do != nil; do = <-more {
			do()
			if !p.rest(more) {
				return
			}
		}
	})
}

// rest makes a goroutine known as idle, unless there will be no more work.
func (p *Pool) rest(more chan func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ending {
		p.idle = append(p.idle, more)
	}
	return !p.ending
}

// Wait waits until all work has returned, and ends the goroutines.
func (p *Pool) Wait() {
	p.mu.Lock()
	p.ending = true
	for _, more := range p.idle {
		close(more)
	}
	p.idle = nil
	p.mu.Unlock()
	p.running.Wait()
	p.mu.Lock()
	p.ending = false
	p.mu.Unlock()
}
