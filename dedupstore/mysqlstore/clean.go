package mysqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
	// cleanBatch is how many records are deleted in one transaction: some milliseconds.
	cleanBatch = 200

	// longestRest leaves a server on which a batch takes long with some hundred records a second.
	longestRest = 250 * time.Millisecond
)

// Clean deletes at most limit expired records, in small transactions, and returns how many. Fewer than limit means that
// no more are left. Several processes may call it.
func (s *Store) Clean(ctx context.Context, limit int) (removed int, err error) {
	if limit < 1 {
		return 0, &dedupstore.InvalidError{Field: "limit", Problem: fmt.Sprintf("is %d, want at least 1", limit)}
	}
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	for removed < limit {
		start := time.Now()
		want := min(limit-removed, cleanBatch)
		found, n, err := s.clean(ctx, want)
		removed += n
		if err != nil {
			return removed, s.failed("clean", err)
		}
		if found < want {
			break
		}
		if !pace.Sleep(ctx, min(3*time.Since(start), longestRest)) {
			return removed, context.Cause(ctx)
		}
	}
	return removed, nil
}

// clean finds expired records without a lock, and deletes those by their IDs that still are: claims lock in that order,
// too.
func (s *Store) clean(ctx context.Context, limit int) (found, removed int, err error) {
	const where = "expires_at <= " + string(sqlstore.MySQLNow)
	rows, err := s.db.QueryContext(ctx, fmt.Sprintf("SELECT id FROM `%s` WHERE %s ORDER BY expires_at LIMIT %d",
		s.config.Table, where, limit))
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	var ids []any
	for rows.Next() {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return 0, 0, err
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil || len(ids) == 0 {
		return 0, 0, err
	}
	query := fmt.Appendf(nil, "DELETE FROM `%s` WHERE id IN ", s.config.Table)
	query = fmt.Appendf(sqlstore.AppendRow(query, ids...), " AND %s", where)
	err = s.again(ctx, func() error {
		result, err := s.db.ExecContext(ctx, string(query))
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		removed = int(n)
		return err
	})
	return len(ids), removed, err
}

// RunCleaning deletes expired records every minute until ctx ends, and then returns nil. It logs errors and goes on. It
// may run in one process or in all.
func (s *Store) RunCleaning(ctx context.Context) error {
	for {
		if _, err := s.Clean(ctx, 1<<30); err != nil && ctx.Err() == nil {
			s.config.Logger.WarnContext(ctx, "mysqlstore: expired records could not be deleted",
				"table", s.config.Table, "error", err)
		}
		if !pace.Sleep(ctx, pace.Jitter(s.rest)) {
			return nil
		}
	}
}
