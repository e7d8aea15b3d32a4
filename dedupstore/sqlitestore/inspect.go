package sqlitestore

import (
	"context"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const duplicatesSQL = `
SELECT coalesce(max(count), 0), coalesce(max(last_at), 0) FROM "{table}_duplicates" WHERE number = ? AND first_at = ?`

// noteSQL begins anew when the number belongs to another record than before.
const noteSQL = `
INSERT INTO "{table}_duplicates" (number, first_at, count, last_at)
SELECT number, first_at, ?2, ?3 FROM "{table}" WHERE key = ?1
ON CONFLICT (number) DO UPDATE SET last_at = excluded.last_at, first_at = excluded.first_at,
	count = excluded.count + CASE WHEN first_at = excluded.first_at THEN count ELSE 0 END`

// Look implements [dedupstore.Inspector]. It does not wait for the write lock.
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	records := make([]dedupstore.Record, len(keys))
	for i, key := range keys {
		now := clock()
		rec, err := s.read(ctx, key.String(), now)
		if err != nil {
			return nil, fmt.Errorf("sqlitestore: look: %w", err)
		}
		records[i] = rec.Look(key, now)
		var last int64
		first := sqlstore.MicrosAt(rec.First)
		err = s.db.QueryRowContext(ctx, s.in(duplicatesSQL), rec.Number, first).Scan(&records[i].Duplicates, &last)
		if err != nil {
			return nil, fmt.Errorf("sqlitestore: look: %w", ended(ctx, err))
		}
		records[i].LastDuplicate = sqlstore.TimeAt(last)
	}
	return records, nil
}

// NoteDuplicates implements [dedupstore.Inspector]. Counts are kept as long as their records.
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	err := s.write(ctx, s.gate.enterLast, func(ctx context.Context, t *lockedTx) error {
		for _, d := range duplicates {
			_, err := t.ExecContext(ctx, s.in(noteSQL), d.Key.String(), d.Count, d.Last.UnixMicro())
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlitestore: note duplicates: %w", noRoom(err))
	}
	return nil
}
