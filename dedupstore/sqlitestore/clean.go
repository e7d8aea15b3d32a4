package sqlitestore

import (
	"context"
	"fmt"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

// cleanBatch is how many records are removed in one transaction. Others get the write lock in between.
const cleanBatch = 200

const cleanSQL = `
DELETE FROM "{table}" WHERE number IN (SELECT number FROM "{table}" WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)`

// Clean removes records that have expired, at most limit, and returns how many they were; fewer than limit: there are no
// more. It works in small transactions, between which claims get the write lock. It may be called by several processes.
func (s *Store) Clean(ctx context.Context, limit int) (removed int, err error) {
	if limit < 1 {
		return 0, &dedupstore.InvalidError{Field: "limit", Problem: fmt.Sprintf("is %d, want at least 1", limit)}
	}
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	for removed < limit {
		want := min(limit-removed, cleanBatch)
		n, err := s.cleanBatch(ctx, want)
		removed += n
		if err != nil {
			return removed, fmt.Errorf("sqlitestore: clean: %w", err)
		}
		if n < want {
			break
		}
	}
	return removed, nil
}

func (s *Store) cleanBatch(ctx context.Context, limit int) (int, error) {
	if err := s.gate.enter(ctx, false); err != nil {
		return 0, err
	}
	leave := sync.OnceFunc(s.gate.leave)
	defer leave()
	detached := context.WithoutCancel(ctx) // a batch is short
	t, err := s.begin(ctx, detached, always)
	if err != nil {
		return 0, err
	}
	defer t.abort()
	result, err := t.StmtContext(detached, s.statements.clean).ExecContext(detached, clock(), limit)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, err
	}
	return int(n), t.commitUnchecked(detached, leave)
}

// commitUnchecked commits, and copies the log to the file when others can write again: SQLite would do so at the end of a
// commit, which takes long after removals all over the table.
func (t *lockedTx) commitUnchecked(ctx context.Context, leave func()) error {
	var usual int
	if err := t.conn.QueryRowContext(ctx, "PRAGMA wal_autocheckpoint").Scan(&usual); err != nil {
		return err
	}
	if _, err := t.conn.ExecContext(ctx, "PRAGMA wal_autocheckpoint = 0"); err != nil {
		return err
	}
	if err := t.Commit(); err != nil {
		t.discard()
		return err
	}
	leave()
	_, checkpoint := t.conn.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)") // if it fails, another one will be made
	_, undo := t.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA wal_autocheckpoint = %d", usual))
	if checkpoint != nil || undo != nil {
		t.discard()
		return nil //nolint:nilerr // it is committed
	}
	t.conn.Close()
	return nil
}

// RunCleaning removes expired records as they come up, until ctx ends; then it returns nil. Run it in one process of those
// that share the database, or in each.
func (s *Store) RunCleaning(ctx context.Context) error {
	for {
		if _, err := s.Clean(ctx, 1<<30); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "oncemill: expired dedup records not removed", "table", s.config.Table, "error", err)
		}
		if !sleep(ctx, s.config.CleanInterval) {
			return nil
		}
	}
}
