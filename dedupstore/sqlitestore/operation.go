package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// maxBatch is how many operations share a transaction at most, so that others get the write lock in between.
const maxBatch = 256

// An operation changes one record in a transaction that it shares with others.
type operation struct {
	key string
	// may be called again, after a transaction that failed
	apply func(rec *record, now time.Time) (next *dedupstore.Stored, err error)
	err   *error // where its result goes
}

// do makes operations in their order. The context bounds the waiting for the write lock.
func (s *Store) do(ctx context.Context, ops []operation) {
	for batch := range slices.Chunk(ops, maxBatch) {
		err := s.write(ctx, s.gate.enter, func(ctx context.Context, t *lockedTx) error {
			load := t.StmtContext(ctx, s.statements.load)
			for _, op := range batch {
				if err := s.change(ctx, t.Tx, load, op); err != nil {
					return fmt.Errorf("write record: %w", err)
				}
			}
			return nil
		})
		switch {
		case err == nil:
		case len(batch) > 1 && ctx.Err() == nil: // one that cannot be made must not harm the others
			for i := range batch {
				s.do(ctx, batch[i:i+1])
			}
		default:
			for _, op := range batch {
				*op.err = noRoom(fmt.Errorf("sqlitestore: %w", err))
			}
		}
	}
}

// change makes one operation. Its error is that of the database; what the record says goes to the operation.
func (s *Store) change(ctx context.Context, tx *sql.Tx, stmt querier, op operation) error {
	now := clock()
	rec, err := load(ctx, stmt, op.key, now)
	if err != nil {
		if isRecordError(err) {
			*op.err = err
			return nil
		}
		return err
	}
	next, err := op.apply(rec, now)
	if *op.err = err; next == nil {
		return nil
	}
	rec.Stored = *next
	return s.save(ctx, tx, rec)
}
