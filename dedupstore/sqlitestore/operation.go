package sqlitestore

import (
	"context"
	"fmt"
	"slices"

	"github.com/oncemill/oncemill/internal/sqlstore"
)

// maxBatch is how many operations share a transaction at most, so that others get the write lock in between.
const maxBatch = 256

// do makes operations in their order. The context bounds the waiting for the write lock.
func (s *Store) do(ctx context.Context, ops []sqlstore.Operation) {
	for batch := range slices.Chunk(ops, maxBatch) {
		err := s.write(ctx, s.gate.enter, func(ctx context.Context, t *lockedTx) error {
			stmt, now := t.StmtContext(ctx, s.statements.load), clock()
			found, locked := map[string]*sqlstore.Row{}, map[string]bool{}
			for _, op := range batch {
				if locked[op.ID] {
					continue
				}
				rec, err := load(ctx, stmt, op.Key, now)
				if err != nil {
					return fmt.Errorf("write record: %w", err)
				}
				found[op.ID], locked[op.ID] = rec, true
			}
			for _, rec := range sqlstore.Decide(batch, found, locked, now) {
				if err := s.save(ctx, t.Tx, rec); err != nil {
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
				*op.Err = noRoom(fmt.Errorf("sqlitestore: %w", err))
			}
		}
	}
}
