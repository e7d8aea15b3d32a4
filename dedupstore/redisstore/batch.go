package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// ClaimMany implements [dedupstore.Batcher]: a pipeline for each node of the server, of at most 256 claims.
func (s *Store) ClaimMany(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	sent, ready := time.Now(), s.ready.pass(ctx, s.check)
	ops := make([]*operation, len(requests))
	for i, r := range requests {
		if results[i].Err = r.Validate(); results[i].Err != nil {
			continue
		}
		if a, hit := s.cached(ctx, r, sent); hit {
			results[i] = dedupstore.ClaimResult{Answer: a, Err: ctx.Err()}
		} else if results[i].Err = ready; ready == nil {
			ops[i] = s.firstOperation(ctx, r, sent)
		}
	}
	asked := slices.Clone(ops)
	s.runMany(ctx, ops, true)
	again := make([]*operation, len(requests))
	for i, r := range requests {
		switch {
		case asked[i] == nil: // has its result
		case ops[i] == nil:
			results[i].Err = ctx.Err()
		case !ops[i].plain:
			results[i].Answer, results[i].Err = s.answer(ctx, r, ops[i], sent)
		default:
			var known bool
			if results[i], known = s.plainResult(ctx, r, ops[i]); !known {
				again[i] = s.claimOperation(r)
			}
		}
	}
	asked = slices.Clone(again)
	s.runMany(ctx, again, true)
	for i, r := range requests {
		if asked[i] != nil {
			results[i].Answer, results[i].Err = s.answer(ctx, r, again[i], sent)
		}
	}
	return results
}

// SettleMany implements [dedupstore.Batcher].
func (s *Store) SettleMany(ctx context.Context, settlings []dedupstore.Settling) []error {
	results := make([]error, len(settlings))
	ops := make([]*operation, len(settlings))
	for i, t := range settlings {
		ops[i], results[i] = s.settleOperation(t.Claim, t.Settlement)
	}
	s.runMany(ctx, ops, false)
	for i := range settlings {
		if results[i] == nil {
			results[i] = done(ctx, ops[i])
		}
	}
	return results
}

// runMany runs the operations that are not nil. Those whose context ended before their reply came are nil afterwards.
// Two on the same record never travel at once: pipelines may overtake each other, and their order counts.
func (s *Store) runMany(ctx context.Context, ops []*operation, claims bool) {
	todo := make([]int, 0, len(ops))
	for i, op := range ops {
		if op != nil {
			todo = append(todo, i)
		}
	}
	for len(todo) > 0 {
		wave, later := map[*lane][]int{}, todo[:0:0]
		names := make(map[string]struct{}, len(todo))
		for _, i := range todo {
			name := ops[i].name
			if _, again := names[name]; again {
				later = append(later, i)
				continue
			}
			names[name] = struct{}{}
			l := s.lanes.of(ctx, name, claims)
			wave[l] = append(wave[l], i)
		}
		s.runWave(ctx, ops, wave)
		todo = later
	}
}

// runWave runs the operations of each lane at once.
func (s *Store) runWave(ctx context.Context, ops []*operation, wave map[*lane][]int) {
	var group sync.WaitGroup
	defer group.Wait()
	for l, indices := range wave {
		if len(wave) == 1 {
			runLane(ctx, l, ops, indices)
			return
		}
		group.Go(func() { runLane(ctx, l, ops, indices) })
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
		for _, op := range batch {
			op.free()
		}
		clear(batch)
	}
	for n, i := range indices {
		ops[i] = batch[n]
	}
}
