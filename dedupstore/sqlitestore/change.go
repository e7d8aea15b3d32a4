package sqlitestore

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
)

const forgetSQL = `
DELETE FROM "{table}_duplicates" WHERE number = ?1;
DELETE FROM "{table}" WHERE number = ?1`

// Change implements [dedupstore.Inspector]. While a handler of the inbox runs, it waits for the write lock. Bytes of a
// forgotten record stay in the file until SQLite uses their place again, unless PRAGMA secure_delete is on.
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	var refused error
	err := s.write(ctx, s.gate.enterLast, func(ctx context.Context, t *lockedTx) error {
		now := clock()
		rec, err := load(ctx, t.StmtContext(ctx, s.statements.load), seen.Key.String(), now)
		if err != nil {
			return err
		}
		var next *dedupstore.Stored
		if refused = rec.Err; refused == nil {
			next, refused = rec.Change(seen, c, now)
		}
		switch {
		case refused != nil:
			return refused
		case next == nil:
			_, err = t.ExecContext(ctx, s.in(forgetSQL), rec.Number)
			return err
		}
		rec.Stored = *next
		return s.save(ctx, t.Tx, rec)
	})
	switch {
	case refused != nil:
		return refused
	case err != nil:
		return fmt.Errorf("sqlitestore: change: %w", noRoom(err))
	}
	return nil
}
