package sqlitestore

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// Claim implements [dedupstore.Store]. What the latest snapshot of the database shows to be refused is refused without the
// write lock; nothing is granted without it.
func (s *Store) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	a := s.ask(ctx, r, false)
	if a.op != nil {
		s.queue.add(a.op)
	}
	return a.wait(ctx)
}

// ClaimMany implements [dedupstore.Batcher].
func (s *Store) ClaimMany(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	asked := make([]*asking, len(requests))
	var ops []*operation
	changing := map[dedupstore.Key]bool{} // what the snapshot shows of them may be over when it is a further claim's turn
	for i, r := range requests {
		asked[i] = s.ask(ctx, r, changing[r.Key])
		if asked[i].op != nil {
			ops = append(ops, asked[i].op)
			changing[r.Key] = true
		}
	}
	s.queue.add(ops...)
	results := make([]dedupstore.ClaimResult, len(requests))
	for i, a := range asked {
		results[i].Answer, results[i].Err = a.wait(ctx)
	}
	return results
}

// An asking is a claim under way.
type asking struct {
	store     *Store
	request   dedupstore.Request
	op        *operation // nil: answered, or wrong
	answer    dedupstore.Answer
	err       error
	contested *dedupstore.Answer // if the write lock is not to be had: the answer
	patience  time.Duration      // then
}

// contestedWait is when to ask again for a key that may be held by who has the write lock.
const contestedWait = 50 * time.Millisecond

// ask looks whether a claim is refused anyway, unless the record is about to change, and else prepares the operation.
func (s *Store) ask(ctx context.Context, r dedupstore.Request, changing bool) *asking {
	if err := r.Validate(); err != nil {
		return &asking{err: err}
	}
	if err := s.usable(ctx); err != nil {
		return &asking{err: err}
	}
	key := r.Key.String()
	if answer, held := s.runs.twin(key, r, clock()); held {
		return &asking{answer: answer}
	}
	a := &asking{store: s, request: r}
	now := clock()
	seen, err := s.read(ctx, key, now)
	switch {
	case isRecordError(err):
		return &asking{err: err}
	case err != nil: // the operation will tell
	default:
		owned, lease := seen.owner != "" && seen.owner != r.Owner, seen.lease
		answer, granted := seen.claim(r, now)
		if !granted && !changing && answer.Status != dedupstore.AcquiredRun && answer.Status != dedupstore.AcquiredPublish {
			return &asking{answer: answer}
		}
		if owned && (answer.Found == dedupstore.Running || answer.Found == dedupstore.Publishing) {
			a.patience = patience(duration(now - lease))
			a.contested = &dedupstore.Answer{
				Status: dedupstore.Busy, Found: answer.Found, Wait: contestedWait, Fence: answer.Fence, Age: answer.Age, Trace: answer.Trace,
			}
		}
	}
	a.op = newOperation(key, func(rec *record, now int64) (changed bool, err error) {
		a.answer, changed = rec.claim(r, now)
		return changed, nil
	})
	return a
}

// readPatience bounds how long a claim waits for a connection to look with, if there is a limit of connections.
const readPatience = 25 * time.Millisecond

// read reads a record from the latest snapshot, without the write lock.
func (s *Store) read(ctx context.Context, key string, now int64) (*record, error) {
	if s.bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, readPatience)
		defer cancel()
	}
	select {
	case s.reading <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.reading }()
	return load(ctx, s.statements.load, key, now)
}

// lockedOut waits for a claim that would take over, and reports whether it was given up because the write lock is with who
// holds the key, longer than the lease says: a run of this store, or perhaps a transaction of another that lasts. Behind runs
// of other keys it waits its turn, or a busy database would never give up the keys of the dead.
func (a *asking) lockedOut(ctx context.Context) bool {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if twin, held := a.store.runs.twin(a.op.key, a.request, clock()); held {
				if a.op.abandon() {
					*a.contested = twin
					return true
				}
			} else if a.store.lock.lasts(a.patience) && a.op.abandon() {
				return true
			}
		case <-a.op.done:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (a *asking) wait(ctx context.Context) (dedupstore.Answer, error) {
	if a.op == nil {
		return a.answer, a.err
	}
	if a.contested != nil && a.lockedOut(ctx) {
		return *a.contested, nil
	}
	if err := a.op.await(ctx); err != nil {
		return dedupstore.Answer{}, noRoom(err)
	}
	return a.answer, nil
}
