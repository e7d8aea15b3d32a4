package sqlitestore

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/internal/sqlstore"
)

// maxBatch is how many operations share a transaction at most, so that others get the write lock in between.
const maxBatch = 256

// do makes operations in their order. The context bounds the waiting for the write lock.
func (s *Store) do(ctx context.Context, ops []sqlstore.Operation) {
	write := func(batch []sqlstore.Operation) error {
		return s.write(ctx, s.gate.enter, func(ctx context.Context, t *lockedTx) error {
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
	}
	sqlstore.Together(ops, maxBatch, write, func(error) bool { return ctx.Err() == nil },
		func(op sqlstore.Operation, err error) { *op.Err = noRoom(fmt.Errorf("sqlitestore: %w", err)) })
}
