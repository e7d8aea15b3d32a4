package redisstore

import "strings"

// A round is the memory of one call of the store: an operation takes half a kilobyte.
type round struct {
	made  []operation
	ops   []*operation    // empty, with room for all
	text  strings.Builder // of the operations' names: one piece of memory
	names map[string]struct{}
	kept  bool // the client may still have them
}

// keptRounds is how many rounds a store keeps: as many calls are under way at once, of one guard, while all is well.
const keptRounds = 4

// begin returns a round for n operations.
func (s *Store) begin(n int) *round {
	var r *round
	select {
	case r = <-s.rounds:
	default:
	}
	if r == nil || cap(r.made) < n {
		r = &round{made: make([]operation, n), ops: make([]*operation, 0, n), names: map[string]struct{}{}}
	}
	r.made = r.made[:n]
	r.text.Grow(n * mostName / 2)
	for i := range r.made {
		r.made[i].text = &r.text
	}
	return r
}

// end has a round used again, unless the client may still have its operations. So a hook of the client must not keep
// commands after it has returned.
func (s *Store) end(r *round) {
	if r.kept || cap(r.made) > maxBatch {
		return
	}
	clear(r.made)
	r.text.Reset()
	select {
	case s.rounds <- r:
	default:
	}
}
