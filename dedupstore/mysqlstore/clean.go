package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
	// cleanBatch is how many records are deleted in one transaction: some milliseconds.
	cleanBatch = 200

	// longestRest lets even a slow server delete some hundred records a second.
	longestRest = 250 * time.Millisecond
)

// Clean deletes at most limit expired records, in small transactions, and returns how many. Fewer than limit means that
// no more are left. Several processes may call it.
func (s *Store) Clean(ctx context.Context, limit int) (removed int, err error) {
	if limit < 1 {
		return 0, &dedupstore.InvalidError{
			Package: "mysqlstore", Field: "limit", Problem: fmt.Sprintf("is %d, want at least 1", limit),
		}
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

// clean finds expired records without a lock. Then it deletes those that are still expired, by their IDs: claims lock
// in that order, too.
func (s *Store) clean(ctx context.Context, limit int) (found, removed int, err error) {
	const where = "expires_at <= " + string(sqlstore.MySQLNow)
	var ids []any
	query := fmt.Sprintf("SELECT id FROM `%s` WHERE %s ORDER BY expires_at LIMIT %d", s.config.Table, where, limit)
	err = sqlstore.EachRow(ctx, s.db, query, func(rows *sql.Rows) error {
		var id []byte
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil || len(ids) == 0 {
		return 0, 0, err
	}
	these := sqlstore.AppendRow(nil, ids...)
	query = fmt.Sprintf("DELETE FROM `%s` WHERE id IN %s AND %s", s.config.Table, these, where)
	err = s.again(ctx, func() error {
		removed, err = sqlstore.Change(ctx, s.db, query)
		return err
	})
	return len(ids), removed, err
}

// RunCleaning deletes expired records every minute until ctx ends, and then returns nil. It logs errors and goes on. It
// may run in one process or in all.
func (s *Store) RunCleaning(ctx context.Context) error {
	return sqlstore.RunCleaning(ctx, s.config.Logger, s.config.Table, s.rest, func(ctx context.Context) error {
		_, err := s.Clean(ctx, 1<<30)
		return err
	})
}
