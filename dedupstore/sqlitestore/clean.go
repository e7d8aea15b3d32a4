package sqlitestore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
	cleanBatch  = 200                    // records that are removed in one transaction
	longestRest = 250 * time.Millisecond // between two
)

const expiredSQL = `(SELECT number FROM "{table}" WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)`

const (
	cleanSQL           = `DELETE FROM "{table}" WHERE number IN ` + expiredSQL
	cleanDuplicatesSQL = `DELETE FROM "{table}_duplicates" WHERE number IN ` + expiredSQL
)

// Clean removes at most limit expired records and returns how many it removed. Fewer than limit means that no more are
// left. It works in small transactions, and rests between them three times as long as one takes: then others get the
// write lock. Several processes may call it.
func (s *Store) Clean(ctx context.Context, limit int) (removed int, err error) {
	if limit < 1 {
		return 0, &dedupstore.InvalidError{
			Package: "sqlitestore", Field: "limit", Problem: fmt.Sprintf("is %d, want at least 1", limit),
		}
	}
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	for removed < limit {
		want, n, start := min(limit-removed, cleanBatch), int64(0), time.Now()
		err := s.write(ctx, s.gate.enterLast, func(ctx context.Context, t *lockedTx) error {
			now := clock().UnixMicro()
			if _, err := t.ExecContext(ctx, s.in(cleanDuplicatesSQL), now, want); err != nil {
				return err
			}
			result, err := t.StmtContext(ctx, s.statements.clean).ExecContext(ctx, now, want)
			if err == nil {
				n, err = result.RowsAffected()
			}
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("sqlitestore: clean: %w", err)
		}
		if removed += int(n); int(n) < want {
			break
		}
		if !pace.Sleep(ctx, min(3*time.Since(start), longestRest)) {
			return removed, context.Cause(ctx)
		}
	}
	return removed, nil
}

// RunCleaning removes expired records every minute until ctx ends, and then returns nil. It logs errors and goes on.
// Run it in one of the processes that share the database, or in each.
func (s *Store) RunCleaning(ctx context.Context) error {
	return sqlstore.RunCleaning(ctx, s.config.Logger, s.config.Table, s.rest, func(ctx context.Context) error {
		_, err := s.Clean(ctx, 1<<30)
		return err
	})
}
