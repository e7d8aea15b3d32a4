package pgoutbox

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

const (
	statsSQL = `
SELECT count(*),
	coalesce(greatest(0, extract(epoch FROM clock_timestamp() - min(coalesce(not_before, written_at)))), 0)::float8,
	(SELECT count(*) FROM {table} WHERE dead_at IS NOT NULL)
FROM {table} WHERE published_at IS NULL AND dead_at IS NULL`

	deadSQL = `
SELECT id, topic, written_at, dead_at, coalesce(failures, 0), coalesce(unknowns, 0), coalesce(last_error, '')
FROM {table} WHERE dead_at IS NOT NULL ORDER BY dead_at LIMIT $1::bigint`

	requeueSQL = `
UPDATE {table} SET dead_at = NULL, due_at = clock_timestamp(), failures = NULL, unknowns = NULL
WHERE dead_at IS NOT NULL AND id = ANY($1::text[])`

	discardSQL = `DELETE FROM {table} WHERE dead_at IS NOT NULL AND id = ANY($1::text[])`
)

// Stats implements [outbox.Inspector]. It reads each pending row.
func (o *Outbox) Stats(ctx context.Context) (outbox.Stats, error) {
	var s outbox.Stats
	var oldest float64
	if err := o.pool.QueryRow(ctx, o.sql.stats).Scan(&s.Pending, &oldest, &s.Dead); err != nil {
		return outbox.Stats{}, o.explain(err)
	}
	s.Oldest = time.Duration(oldest * float64(time.Second))
	return s, nil
}

// Dead implements [outbox.Inspector].
func (o *Outbox) Dead(ctx context.Context, limit int) (rows []outbox.DeadRow, err error) {
	err = o.pipeline(ctx, 2, []eachRowFunc{func(scan func(...any) error) error {
		var r outbox.DeadRow
		err := scan(&r.ID, &r.Topic, &r.Written, &r.Died, &r.Failures, &r.Unknowns, &r.Error)
		rows = append(rows, r)
		return err
	}}, begin, statement{query: byIndexSQL}, statement{o.sql.dead, []any{int64(limit)}}, commit)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Requeue implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Requeue(ctx context.Context, ids ...string) (int, error) {
	return o.free(ctx, o.sql.requeue, ids)
}

// Discard implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Discard(ctx context.Context, ids ...string) (int, error) {
	return o.free(ctx, o.sql.discard, ids)
}

// free acts on dead rows, and on the rows that wait for them.
func (o *Outbox) free(ctx context.Context, query string, ids []string) (int, error) {
	tag, err := o.pool.Exec(ctx, query, ids)
	if err != nil {
		return 0, o.explain(err)
	}
	o.Wake()
	return int(tag.RowsAffected()), nil
}
