package redisstore

// A round is the memory of one call of the store: an operation takes half a kilobyte.
type round struct {
	made []operation
	ops  []*operation // empty, with room for all
	kept bool         // the client may still have them
}

// begin returns a round for n operations.
func (s *Store) begin(n int) *round {
	r, _ := s.rounds.Get().(*round)
	if r == nil || cap(r.made) < n {
		r = &round{made: make([]operation, n), ops: make([]*operation, 0, n)}
	}
	r.made = r.made[:n]
	return r
}

// end has a round used again, unless the client may still have its operations. So a hook of the client must not keep
// commands after it has returned.
func (s *Store) end(r *round) {
	if r.kept || cap(r.made) > maxBatch {
		return
	}
	clear(r.made)
	s.rounds.Put(r)
}
