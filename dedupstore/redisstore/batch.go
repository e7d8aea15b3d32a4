package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

// ClaimMany implements [dedupstore.Batcher]: a pipeline for each node of the server, of at most 256 claims, and a
// second one for those of keys that are known and not done.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results, replicas := make([]dedupstore.ClaimResult, len(requests)), make([]acknowledged, len(requests))
	ready := s.ready.pass(ctx, s.check)
	several := several(requests)
	ops := make([]*operation, len(requests))
	for i, r := range requests {
		if err := r.Validate(); err != nil {
			results[i].Err = err
		} else if ready != nil {
			results[i].Err = ready
		} else if several[r.Key] { // in order, so none of them in a second pipeline
			ops[i] = s.claimOperation(r)
		} else {
			ops[i] = s.firstOperation(ctx, r)
		}
	}
	for ops != nil {
		ops = s.ask(ctx, requests, ops, results, replicas)
	}
	s.confirm(ctx, results, replicas)
	return results
}

// several returns the keys of more than one request.
func several(requests []dedupstore.Request) map[dedupstore.Key]bool {
	if len(requests) == 1 {
		return nil
	}
	several := make(map[dedupstore.Key]bool, len(requests))
	for _, r := range requests {
		_, known := several[r.Key]
		several[r.Key] = known
	}
	return several
}

// ask sends claims and reads their answers. It returns those that have to be asked again, by script; nil: none.
func (s *Store) ask(ctx context.Context, requests []dedupstore.Request, ops []*operation,
	results []dedupstore.ClaimResult, replicas []acknowledged,
) (again []*operation) {
	asked := slices.Clone(ops)
	s.runMany(ctx, ops, true)
	for i, op := range ops {
		if asked[i] == nil { // has its result
			continue
		}
		if op == nil {
			results[i].Err = ctx.Err()
			continue
		}
		answer, known, err := s.answer(requests[i], op)
		results[i], replicas[i] = dedupstore.ClaimResult{Answer: answer, Err: err}, op.acknowledged
		if !known {
			if again == nil {
				again = make([]*operation, len(ops))
			}
			again[i] = s.claimOperation(requests[i])
		}
	}
	return again
}

// SettleMany implements [dedupstore.Batcher].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	results := make([]error, len(settlings))
	ops := make([]*operation, len(settlings))
	for i, t := range settlings {
		ops[i], results[i] = s.settleOperation(t.Claim, t.Settlement)
	}
	s.runMany(ctx, ops, false)
	for i := range settlings {
		if results[i] == nil {
			results[i] = s.done(ctx, ops[i])
		}
	}
	return results
}

// runMany runs the operations that are not nil. Those whose context ended before their reply came are nil afterwards.
// Two on the same record never travel at once: pipelines may overtake each other, and their order counts.
func (s *Store) runMany(ctx context.Context, ops []*operation, claims bool) {
	if len(ops) == 1 && ops[0] != nil {
		ops[0] = s.run(ctx, ops[0], claims)
		return
	}
	todo := make([]int, 0, len(ops))
	for i, op := range ops {
		if op != nil {
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		wave, later := map[*lane][]int{}, todo[:0:0]
		names := make(map[string]bool, len(todo))
		var large [][]int
		lanes := make([]*lane, len(ops))
		for _, i := range todo {
			name := ops[i].name
			if names[name] {
				later = append(later, i)
				continue
			}
			names[name] = true
			lanes[i] = s.lanes.of(ctx, name, claims)
			if ops[i].size > maxShared { // travels alone
				large = append(large, []int{i})
			} else {
				wave[lanes[i]] = append(wave[lanes[i]], i)
			}
		}
		var group sync.WaitGroup
		for l, indices := range wave {
			if len(wave) == 1 {
				runLane(ctx, l, ops, indices)
				break
			}
			group.Go(func() {
				defer func() { // nobody else could tell of a panic in a hook of the client
					if p := recover(); p != nil {
						for _, i := range indices {
							ops[i].err = fmt.Errorf("%w: %v", errPanic, p)
						}
					}
				}()
				runLane(ctx, l, ops, indices)
			})
		}
		group.Wait()
		for _, one := range large {
			runLane(ctx, lanes[one[0]], ops, one)
		}
		todo = later
	}
}

func runLane(ctx context.Context, l *lane, ops []*operation, indices []int) {
	batch := make([]*operation, len(indices))
	for n, i := range indices {
		batch[n] = ops[i]
	}
	if ctx.Err() == nil {
		l.do(ctx, batch)
	} else {
		clear(batch)
	}
	for n, i := range indices {
		ops[i] = batch[n]
	}
}
