package batch

import "sync"

// A Pool runs work in goroutines that wait for more of it as long as any is going on: a new goroutine for each piece
// would grow its stack each time. How much there is at a time is up to the caller. The zero value is ready to use. It
// is safe for concurrent use.
type Pool struct {
	mu      sync.Mutex
	idle    []chan func() // of goroutines without work
	busy    int           // goroutines with work, and Keeps
	running sync.WaitGroup
}

// Go does work in a goroutine, which work may end (runtime.Goexit).
func (p *Pool) Go(work func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
	if n := len(p.idle); n > 0 {
		p.idle[n-1] <- work // it has room
		p.idle = p.idle[:n-1]
		return
	}
	p.running.Go(func() { p.work(work, make(chan func(), 1)) })
}

// work does work, and more of it, until all is done.
func (p *Pool) work(work func(), more chan func()) {
	exited := true
	defer func() {
		if exited {
			p.done(nil)
		}
	}()
	for ; work != nil; work = <-more {
		work()
		p.done(more)
	}
	exited = false
}

// done notes that a piece of work is done. Its goroutine waits for more if any other works.
func (p *Pool) done(more chan func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if more != nil {
		p.idle = append(p.idle, more)
	}
	if p.busy--; p.busy > 0 {
		return
	}
	for _, waiting := range p.idle {
		close(waiting)
	}
	p.idle = nil
}

// Keep keeps goroutines without work until Release is called as often: more work is about to come.
func (p *Pool) Keep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
}

// Release ends a Keep.
func (p *Pool) Release() { p.done(nil) }

// Wait waits until all work has returned and the goroutines have ended.
func (p *Pool) Wait() { p.running.Wait() }
