// Package lanes runs work concurrently, but in order where order was asked for.
package lanes

import "sync"

// A Set runs work in goroutines of its own: what has the same lane one after the other, in the order of Go, everything
// else at once. How much there is at a time is up to the caller. The zero value is usable. It is safe for concurrent use;
// the order of a lane is that of the calls.
type Set struct {
	mu      sync.Mutex
	waiting map[string][]func() // by lane; an entry, empty or not, means that the lane is running
	running sync.WaitGroup
}

// Go runs work after all earlier work of its lane has returned. The lane "" has no order.
func (s *Set) Go(lane string, work func()) {
	if lane == "" {
		s.running.Go(work)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if queue, busy := s.waiting[lane]; busy {
		s.waiting[lane] = append(queue, work)
		return
	}
	if s.waiting == nil {
		s.waiting = map[string][]func(){}
	}
	s.waiting[lane] = nil
	s.running.Go(func() {
		for next := work; next != nil; next = s.next(lane) {
			next()
		}
	})
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
func (s *Set) Wait() { s.running.Wait() }
