package sqliteoutbox

import (
	"context"
	"database/sql"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

const statsSQL = `
SELECT count(*), min(not_before), (SELECT count(*) FROM "{table}" WHERE dead_at IS NOT NULL)
FROM "{table}" WHERE published_at IS NULL AND dead_at IS NULL`

// Stats implements [outbox.Inspector]. It reads each pending row.
func (o *Outbox) Stats(ctx context.Context) (outbox.Stats, error) {
	var s outbox.Stats
	var oldest sql.NullInt64
	if err := o.db.QueryRowContext(ctx, o.sql.stats).Scan(&s.Pending, &oldest, &s.Dead); err != nil {
		return outbox.Stats{}, err
	}
	if oldest.Valid {
		s.Oldest = max(0, time.Since(time.UnixMicro(oldest.Int64)))
	}
	return s, nil
}

const deadSQL = `
SELECT id, topic, written_at, dead_at, failures, unknowns, coalesce(last_error, '')
FROM "{table}" WHERE dead_at IS NOT NULL ORDER BY dead_at, number LIMIT ?1`

// Dead implements [outbox.Inspector].
func (o *Outbox) Dead(ctx context.Context, limit int) ([]outbox.DeadRow, error) {
	found, err := o.db.QueryContext(ctx, o.sql.dead, limit)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var rows []outbox.DeadRow
	for found.Next() {
		var r outbox.DeadRow
		var written, died int64
		if err := found.Scan(&r.ID, &r.Topic, &written, &died, &r.Failures, &r.Unknowns, &r.Error); err != nil {
			return nil, err
		}
		r.Written, r.Died = time.UnixMicro(written), time.UnixMicro(died)
		rows = append(rows, r)
	}
	return rows, found.Err()
}

const requeueSQL = `
UPDATE "{table}" SET dead_at = NULL, due_at = ?1, failures = 0, unknowns = 0
WHERE dead_at IS NOT NULL AND id IN (SELECT value FROM json_each(?2))`

// Requeue implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Requeue(ctx context.Context, ids ...string) (int, error) {
	defer o.Wake()
	return change(ctx, o.db, o.sql.requeue, now(), list(ids))
}

const discardSQL = `DELETE FROM "{table}" WHERE dead_at IS NOT NULL AND id IN (SELECT value FROM json_each(?1))`

// Discard implements [outbox.Inspector].
func (o *Outbox) Discard(ctx context.Context, ids ...string) (int, error) {
	return change(ctx, o.db, o.sql.discard, list(ids))
}

const replaySQL = `
UPDATE "{table}" SET published_at = NULL, due_at = ?1, failures = 0, unknowns = 0, replays = replays + 1
WHERE number IN (
	SELECT number FROM "{table}"
	WHERE published_at >= ?2 AND published_at < ?3 AND (?4 = '' OR topic = ?4)
		AND (?5 = '[]' OR id IN (SELECT value FROM json_each(?5)))
	ORDER BY published_at LIMIT ?6)`

// Replay implements [outbox.Replayer], and wakes a relay of this process.
func (o *Outbox) Replay(ctx context.Context, r outbox.ReplayRequest) (int, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	since := int64(0)
	if !r.Since.IsZero() {
		since = r.Since.UnixMicro()
	}
	defer o.Wake()
	return change(ctx, o.db, o.sql.replay, now(), since, r.Before.UnixMicro(), r.Topic, list(r.IDs), r.Limit)
}
