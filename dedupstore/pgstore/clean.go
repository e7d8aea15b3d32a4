package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// Clean deletes records that have expired, at most limit of them (1 to 100,000), in one transaction, and returns how
// many; and at most as many heartbeats of runs that are over. It is quick for a limit of some thousands; claims do not
// wait for it. While another cleaning of this store is under way, it does nothing and returns 0.
func (s *Store) Clean(ctx context.Context, limit int) (removed int, err error) {
	if limit < 1 || limit > mostCleaned {
		return 0, &dedupstore.InvalidError{Field: "limit",
			Problem: fmt.Sprintf("is %d, want 1 to %d", limit, mostCleaned)}
	}
	err = s.again(ctx, func() error {
		return s.committed(ctx, s.sql.cleanUp, []any{int64(limit)}, func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&removed}, func() error { return nil })
			return err
		})
	})
	if err != nil {
		return 0, s.failed("clean", err)
	}
	return removed, nil
}

// RunCleaning deletes expired records, and then heartbeats of runs that are over, in batches, at once and then every
// Config.CleanInterval, until ctx ends; then it returns nil. A batch is as large as takes a few milliseconds, and after
// each it rests for three times as long as that took: what a server writes for a cleaning, and reads, delays the
// commits of others for no longer than a small batch does, and the slower the server, the longer the rests. Errors are
// logged, and it goes on. It may run in every process: one at a time cleans.
func (s *Store) RunCleaning(ctx context.Context) error {
	for {
		if err := s.cleanAll(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Logger.WarnContext(ctx, "pgstore: expired records could not be deleted", "error", err)
		}
		if !pace.Sleep(ctx, pace.Jitter(s.cfg.CleanInterval)) {
			return nil
		}
	}
}

// cleanAll deletes records, and then the heartbeats that cleaning as many records has left: those of runs that are
// finished.
func (s *Store) cleanAll(ctx context.Context) error {
	if err := s.inBatches(ctx, s.Clean); err != nil {
		return err
	}
	return s.inBatches(ctx, s.cleanBeats)
}

// inBatches deletes until a batch is less than half full. Less than full says nothing: some of what was looked at may
// have to stay, and is not looked at again soon.
func (s *Store) inBatches(ctx context.Context, clean func(context.Context, int) (int, error)) error {
	batch := smallBatch
	for {
		start := time.Now()
		removed, err := clean(ctx, batch)
		took := time.Since(start)
		if err != nil || 2*removed < batch || !pace.Sleep(ctx, min(restFactor*took, longestRest)) {
			return err
		}
		batch = nextBatch(batch, took)
	}
}

// cleanBeats deletes heartbeats that mean nothing any more, at most limit of them, and returns how many.
func (s *Store) cleanBeats(ctx context.Context, limit int) (removed int, err error) {
	err = s.again(ctx, func() error {
		var batch pgx.Batch
		batch.Queue(callHurry)
		batch.Queue(s.sql.cleanBeats, int64(limit)).Exec(func(tag pgconn.CommandTag) error {
			removed = int(tag.RowsAffected())
			return nil
		})
		return s.pool.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return 0, s.failed("clean heartbeats", err)
	}
	return removed, nil
}

const (
	// batchTime is how long a batch should take.
	batchTime = 5 * time.Millisecond

	// smallBatch is the first batch, and the smallest one however slow the server is.
	smallBatch = 100

	// largeBatch is the largest one, and mostCleaned what a caller of Clean may ask for.
	largeBatch  = 1000
	mostCleaned = 100_000

	// restFactor is how many times as long as a batch took the rest after it is, and longestRest what it is at most:
	// with that, a server on which the smallest batch takes long still gets rid of some hundred records a second.
	restFactor  = 3
	longestRest = 250 * time.Millisecond
)

// nextBatch is how many records should take batchTime, after some have taken a while: at most twice as many.
func nextBatch(batch int, took time.Duration) int {
	next := 2 * batch
	if took > batchTime/2 {
		next = int(int64(batch) * int64(batchTime) / int64(took))
	}
	return min(max(next, smallBatch), largeBatch)
}
