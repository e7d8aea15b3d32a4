package sqlitestore

import (
	"cmp"
	"context"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// Claim implements [dedupstore.Store]. It refuses without the write lock what the latest snapshot of the database shows
// to be refused. It grants nothing without it.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	unusable := s.usable(ctx)
	var ops []sqlstore.Operation
	changing := map[dedupstore.Key]bool{} // the snapshot may be out of date when it is a further claim's turn
	for i, r := range requests {
		result := &results[i]
		if result.Err = cmp.Or(r.Validate(), unusable); result.Err != nil {
			continue
		}
		if !changing[r.Key] {
			var refused bool
			if result.Answer, refused = s.refusal(ctx, r); refused {
				continue
			}
			changing[r.Key] = true
		}
		op := sqlstore.NewOperation(r.Key, &result.Err)
		op.Apply = func(rec dedupstore.Stored, now time.Time) (next *dedupstore.Stored, err error) {
			next, result.Answer = answer(rec, r, now)
			return next, nil
		}
		ops = append(ops, op)
	}
	s.do(ctx, ops)
	for i, result := range results {
		if result.Err != nil {
			results[i].Answer = dedupstore.Answer{} // of a transaction that is not there
		}
	}
	return results
}

// twinWait is when to ask again for the key of a run that is late.
const twinWait = 50 * time.Millisecond

// refusal looks whether a claim is refused anyway. It ignores errors: the operation will meet them again.
func (s *Store) refusal(ctx context.Context, r dedupstore.Request) (a dedupstore.Answer, refused bool) {
	now := clock()
	seen, err := s.read(ctx, r.Key.String(), now)
	if err != nil {
		return a, false
	}
	if _, a = answer(seen.Stored, r, now); a.Claim.Fence == 0 {
		return a, true
	}
	owned := seen.Owner != "" && seen.Owner != r.Owner
	if owned && s.runs.twin(r.Key, r.Owner) { // it holds longer than its lease says, and may have the write lock
		return dedupstore.Answer{
			Status: dedupstore.Busy, Found: a.Found, Wait: twinWait, Fence: seen.Fence, Age: a.Age, Trace: a.Trace,
		}, true
	}
	return a, false
}

// read reads a record from the latest snapshot, without the write lock.
func (s *Store) read(ctx context.Context, key string, now time.Time) (*sqlstore.Row, error) {
	if err := put(ctx, s.reading); err != nil {
		return nil, err
	}
	defer func() { <-s.reading }()
	rec, err := load(ctx, s.statements.load, key, now)
	if err == nil {
		err = rec.Err
	}
	return rec, err
}

// answer answers a claim. A run whose handler has committed the transaction by itself ends as unknown: see markSQL.
func answer(
	rec dedupstore.Stored, r dedupstore.Request, now time.Time,
) (next *dedupstore.Stored, a dedupstore.Answer) {
	if !committedAlone(rec) {
		return rec.Claim(r, now)
	}
	rec.Started, r.ParkExpired = true, true
	if next, a = rec.Claim(r, now); next != nil {
		next.Outcome.Reason = "the handler committed the transaction of its run by itself, without an outcome"
		a.Outcome.Reason = next.Outcome.Reason
	}
	return next, a
}

// committedAlone reports whether a run's mark is there without its end.
func committedAlone(rec dedupstore.Stored) bool {
	return rec.State == dedupstore.Running && rec.Decided == rec.Fence
}
