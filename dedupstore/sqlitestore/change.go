package sqlitestore

import (
	"context"
	"fmt"
	"time"

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
		if refused = dedupstore.Refuse(c, seen, rec.look(seen.Key), time.UnixMicro(now)); refused != nil {
			return refused
		}
		if _, forgets := c.(dedupstore.Forget); forgets {
			_, err = t.ExecContext(ctx, s.in(forgetSQL), rec.number)
			return err
		}
		rec.change(c, now)
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

// change makes a change that is not refused, and forgets nothing.
func (rec *record) change(c dedupstore.Change, now int64) {
	switch c := c.(type) {
	case dedupstore.Rerun:
		rec.again()
		rec.state, rec.owner, rec.started, rec.due = dedupstore.Retryable, "", false, now
		rec.outcome = dedupstore.Outcome{Reason: rec.outcome.Reason}
	case dedupstore.Complete:
		produced := rec.outcome.Produced
		rec.outcome = c.Outcome
		rec.outcome.Produced = produced
	}
}
