package sqlitestore

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

// Claim implements [dedupstore.Store]. It refuses without the write lock what the latest snapshot of the database shows
// to be refused. It grants nothing without it.
func (s *Store) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	result := s.Claim(ctx, []dedupstore.Request{r})[0]
	return result.Answer, result.Err
}

// ClaimMany implements [dedupstore.Batcher].
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	asked := make([]*operation, len(requests))
	var ops []*operation
	changing := map[dedupstore.Key]bool{} // the snapshot may be out of date when it is a further claim's turn
	for i, r := range requests {
		asked[i], results[i].Answer, results[i].Err = s.ask(ctx, r, changing[r.Key])
		if asked[i] != nil {
			ops = append(ops, asked[i])
			changing[r.Key] = true
		}
	}
	s.queue.add(ops...)
	for i, op := range asked {
		if op == nil {
			continue
		}
		if err := op.await(ctx); err != nil {
			results[i].Err = noRoom(err)
		} else {
			results[i].Answer = op.answer
		}
	}
	return results
}

// twinWait is when to ask again for the key of a run that is late.
const twinWait = 50 * time.Millisecond

// ask looks whether a claim is refused anyway, unless the record is about to change, and else prepares the operation.
func (s *Store) ask(
	ctx context.Context, r dedupstore.Request, changing bool,
) (op *operation, answer dedupstore.Answer, err error) {
	if err := r.Validate(); err != nil {
		return nil, answer, err
	}
	if err := s.usable(ctx); err != nil {
		return nil, answer, err
	}
	key, now := r.Key.String(), clock()
	seen, err := s.read(ctx, key, now)
	if isRecordError(err) {
		return nil, answer, err
	}
	if err == nil && !changing { // else the operation will tell
		owned, fence := seen.owner != "" && seen.owner != r.Owner, seen.fence
		answer, granted := seen.claim(r, now)
		if !granted && answer.Status != dedupstore.AcquiredRun && answer.Status != dedupstore.AcquiredPublish {
			return nil, answer, nil
		}
		if owned && s.runs.twin(r.Key, r.Owner) { // it holds longer than its lease says, and may have the write lock
			return nil, dedupstore.Answer{
				Status: dedupstore.Busy, Found: answer.Found, Wait: twinWait, Fence: fence,
				Age: answer.Age, Trace: answer.Trace,
			}, nil
		}
	}
	op = newOperation(key, func(rec *record, now int64) (changed bool, err error) {
		op.answer, changed = rec.claim(r, now)
		return changed, nil
	})
	return op, answer, nil
}

// read reads a record from the latest snapshot, without the write lock.
func (s *Store) read(ctx context.Context, key string, now int64) (*record, error) {
	select {
	case s.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.reading }()
	return load(ctx, s.statements.load, key, now)
}
