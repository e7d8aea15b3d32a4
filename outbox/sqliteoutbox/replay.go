package sqliteoutbox

import (
	"context"

	"github.com/oncemill/oncemill/outbox"
)

// The column copy stays: what names the row for whoever repeats the action that wrote it.
const replaySQL = `
UPDATE "{table}" SET published_at = NULL, due_at = ?1, failures = 0, unknowns = 0, header = json_set(header,
	'$."oncemill-purpose"', 'replay',
	'$."oncemill-generation"', CAST(coalesce(json_extract(header, '$."oncemill-generation"'), 0) + 1 AS TEXT))
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
	if r.IDs == nil {
		r.IDs = []string{}
	}
	result, err := o.db.ExecContext(ctx, o.sql.replay, now(), since, r.Before.UnixMicro(), r.Topic, list(r.IDs),
		r.Limit)
	if err != nil {
		return 0, err
	}
	o.Wake()
	n, err := result.RowsAffected()
	return int(n), err
}
