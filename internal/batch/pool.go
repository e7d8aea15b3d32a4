package batch

import "sync"

// A Task is a piece of work for a Pool.
type Task interface{ Do() }

// A Pool runs work in goroutines that wait for more of it as long as any is going on: a new goroutine for each piece
// would grow its stack each time. How much there is at a time is up to the caller. The zero value is ready to use. It
// is safe for concurrent use.
//
// All work waits in one queue, and at most one goroutine is on its way there. Before that one begins with a piece, it
// calls the next if there is more. So pieces that block all run at once, and pieces that return at once are run by few
// goroutines, one after the other, without a switch between them.
type Pool struct {
	mu      sync.Mutex
	queue   []Task
	first   int             // of the queue
	idle    []chan struct{} // of goroutines without work
	coming  bool            // a goroutine is on its way to the queue
	busy    int             // pieces of work that are not done, and Keeps
	free    chan struct{}   // closed when there are none; nil: nobody waits for that
	running sync.WaitGroup
}

type task func()

func (t task) Do() { t() }

// Go does work in a goroutine, which work may end (runtime.Goexit).
func (p *Pool) Go(work func()) { p.Run(task(work)) }

// Run is Go for a Task.
func (p *Pool) Run(work Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy++
	if p.first > 0 && len(p.queue) == cap(p.queue) { // there is room at its beginning
		rest := copy(p.queue, p.queue[p.first:])
		clear(p.queue[rest:])
		p.queue, p.first = p.queue[:rest], 0
	}
	p.queue = append(p.queue, work)
	p.call()
}

// call calls a goroutine to the queue, if there is work and none is on its way. The pool is locked.
func (p *Pool) call() {
	if p.coming || p.first == len(p.queue) {
		return
	}
	p.coming = true
	if n := len(p.idle); n > 0 {
		p.idle[n-1] <- struct{}{} // it has room
		p.idle = p.idle[:n-1]
		return
	}
	p.running.Go(p.work)
}

// work does what is in the queue, until all is done.
func (p *Pool) work() {
	more := make(chan struct{}, 1)
	exits := true // unless it returns, a piece of work has ended the goroutine
	defer func() {
		if exits {
			p.Release()
		}
	}()
	for arrived := true; arrived; _, arrived = <-more {
		for next := p.arrive(more); next != nil; next = p.next(more) {
			next.Do()
		}
	}
	exits = false
}

// arrive is next for a goroutine that was called.
func (p *Pool) arrive(more chan struct{}) Task {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.coming = false
	return p.take(more)
}

// next returns the next piece for a goroutine that has done one. Nil: it waits for more, or for the end.
func (p *Pool) next(more chan struct{}) Task {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.take(more)
	p.done()
	return next
}

// take takes the first piece of work. Without one the goroutine is idle. The pool is locked.
func (p *Pool) take(more chan struct{}) Task {
	if p.first == len(p.queue) {
		p.queue, p.first = p.queue[:0], 0
		if p.busy == 0 { // others have done all before this one arrived
			close(more)
		} else {
			p.idle = append(p.idle, more)
		}
		return nil
	}
	next := p.queue[p.first]
	p.queue[p.first] = nil
	p.first++
	p.call()
	return next
}

// done notes that a piece of work is done. After the last, goroutines without work end. The pool is locked.
func (p *Pool) done() {
	if p.busy--; p.busy > 0 {
		return
	}
	for _, more := range p.idle {
		close(more)
	}
	p.idle = nil
	if p.free != nil {
		close(p.free)
		p.free = nil
	}
}

// Keep keeps goroutines without work until Release is called as often: so much more work is about to come.
func (p *Pool) Keep(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy += n
}

// Release ends one Keep.
func (p *Pool) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done()
}

// Wait waits until all work has returned, each Keep is released, and the goroutines have ended.
func (p *Pool) Wait() {
	p.mu.Lock()
	if p.busy > 0 && p.free == nil {
		p.free = make(chan struct{})
	}
	free := p.free
	p.mu.Unlock()
	if free != nil {
		<-free
	}
	p.running.Wait()
}
