// Package lanes runs work concurrently, but in order where order was asked for.
package lanes

import "sync"

// A Set runs work in goroutines of its own: what has the same lane one after the other, in the order of Go, everything
// else at once. How much there is at a time is up to the caller. Goroutines wait for more work until Wait: as many as
// there was work at once, with stacks that have grown already. The zero value is usable. It is safe for concurrent use;
// the order of a lane is that of the calls.
type Set struct {
	mu      sync.Mutex
	waiting map[string][]func() // by lane; an entry, empty or not, means that the lane is running
	idle    []chan func()       // of goroutines without work; closed: there will be none
	ending  bool
	running sync.WaitGroup
}

// Go runs work after all earlier work of its lane has returned. The lane "" has no order.
func (s *Set) Go(lane string, work func()) {
	if lane == "" {
		s.start(work)
		return
	}
	s.mu.Lock()
	if queue, busy := s.waiting[lane]; busy {
		s.waiting[lane] = append(queue, work)
		s.mu.Unlock()
		return
	}
	if s.waiting == nil {
		s.waiting = map[string][]func(){}
	}
	s.waiting[lane] = nil
	s.mu.Unlock()
	s.start(func() { s.run(lane, work) })
}

// run works a lane off, beginning with work. If that ends its goroutine (runtime.Goexit), another one goes on.
func (s *Set) run(lane string, work func()) {
	defer func() {
		if work != nil {
			s.start(func() { s.run(lane, s.next(lane)) })
		}
	}()
	for work != nil {
		work()
		work = s.next(lane)
	}
}

// start gives work to a goroutine that has none, or to a new one.
func (s *Set) start(work func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		s.idle[n-1] <- work // it has room
		s.idle = s.idle[:n-1]
		return
	}
	s.running.Go(func() {
		for more := make(chan func(), 1); work != nil; work = <-more {
			work()
			if !s.rest(more) {
				return
			}
		}
	})
}

// rest makes a goroutine known as idle, unless there will be no more work.
func (s *Set) rest(more chan func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ending {
		s.idle = append(s.idle, more)
	}
	return !s.ending
}

// next takes what waits in a lane; nil ends the lane.
func (s *Set) next(lane string) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.waiting[lane]
	if len(queue) == 0 {
		delete(s.waiting, lane)
		return nil
	}
	work := queue[0]
	queue[0] = nil
	s.waiting[lane] = queue[1:]
	return work
}

// Wait waits until all work has returned. Go must not be called meanwhile, other than by work.
func (s *Set) Wait() {
	s.end(true)
	s.running.Wait()
	s.end(false)
}

func (s *Set) end(now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = now
	for _, more := range s.idle {
		close(more)
	}
	s.idle = nil
}
