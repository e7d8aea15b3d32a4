package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// Clean deletes records that have expired, at most limit of them (1 to 100,000), in one transaction, and returns how many.
// It is quick for a limit of some thousands; claims do not wait for it. While another cleaning of this store is under way,
// it does nothing and returns 0.
func (s *Store) Clean(ctx context.Context, limit int) (removed int, err error) {
	if limit < 1 || limit > maxCleanBatch {
		return 0, &dedupstore.InvalidError{Field: "limit", Problem: fmt.Sprintf("is %d, want 1 to %d", limit, maxCleanBatch)}
	}
	err = again(ctx, func() error { return s.pool.QueryRow(ctx, s.sql.cleanUp, int64(limit)).Scan(&removed) })
	if err != nil {
		return 0, fmt.Errorf("pgstore: clean: %w", s.explain(err))
	}
	return removed, nil
}

// RunCleaning deletes expired records in batches, at once and then every Config.CleanInterval, until ctx ends; then it
// returns nil. Between two batches it rests for as long as a batch takes. Errors are logged, and it goes on. It may run in
// every process: one at a time cleans.
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

func (s *Store) cleanAll(ctx context.Context) error {
	for {
		start := time.Now()
		removed, err := s.Clean(ctx, s.cfg.CleanBatch)
		if err != nil || removed < s.cfg.CleanBatch || !pace.Sleep(ctx, time.Since(start)) {
			return err
		}
	}
}
