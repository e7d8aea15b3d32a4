package pgoutbox

import (
	"context"
	"encoding/json"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

// Work on published rows takes turns, so that each call finds all rows.
const (
	tidyLockSQL = `
SELECT set_config('lock_timeout', $1::text, true), set_config('enable_seqscan', 'off', true),
	set_config('jit', 'off', true),
	pg_advisory_xact_lock('{lease}'::regclass::oid::integer, -2)`

	// By places, not by numbers, which lie anywhere in their index.
	cleanSQL = `
WITH gone AS (
	DELETE FROM {table} WHERE ctid = ANY(ARRAY(
		SELECT ctid FROM {table}
		WHERE published_at IS NOT NULL
			AND published_at <= (SELECT clock_timestamp()) - $1::bigint * interval '1 microsecond'
		ORDER BY published_at LIMIT $2::bigint))
		AND published_at IS NOT NULL -- it may have become pending while its lock was waited for
	RETURNING true)
SELECT count(*) FROM gone`

	// The column copy stays, because it identifies the row when the action that wrote it is repeated. Rows of one batch
	// were published at the same time. In an ordered outbox their places say which rows of a key belong to this call,
	// and which to the next. The server cannot read a header with a zero byte.
	replaySQL = `
WITH again AS (
	UPDATE {table} SET published_at = NULL, due_at = clock_timestamp(), failures = NULL, unknowns = NULL,
		replays = coalesce(replays, 0) + 1
	WHERE number = ANY(ARRAY(
		SELECT number FROM {table}
		WHERE published_at IS NOT NULL AND published_at >= coalesce($1::timestamptz, '-infinity')
			AND published_at < $2::timestamptz
			AND ($3::text = '' OR topic = $3::text) AND (coalesce(cardinality($4::text[]),
				0) = 0 OR id = ANY($4::text[]))
			AND NOT EXISTS (
				SELECT FROM json_each_text(nullif($6::text, 'null')::json) AS want WHERE NOT EXISTS (
					SELECT FROM json_each_text(CASE WHEN json_typeof(header) = 'object'
						AND strpos(header::text, '\u0000') = 0 THEN header END) AS has
					WHERE lower(has.key) = lower(want.key) AND has.value = want.value))
		ORDER BY published_at, place LIMIT $5::bigint))
		AND published_at IS NOT NULL
	RETURNING true)
SELECT count(*) FROM again`
)

// Clean implements [outbox.Store].
func (o *Outbox) Clean(ctx context.Context, age time.Duration, limit int) (int, error) {
	return o.tidy(ctx, statement{o.sql.clean, []any{age.Microseconds(), int64(limit)}})
}

// Replay implements [outbox.Replayer], and wakes a relay of this process. Times are compared with the database's clock.
func (o *Outbox) Replay(ctx context.Context, r outbox.ReplayRequest) (int, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	header, err := json.Marshal(r.Header)
	if err != nil {
		return 0, err
	}
	n, err := o.tidy(ctx, statement{o.sql.replay,
		[]any{timeOf(r.Since), r.Before, r.Topic, r.IDs, int64(r.Limit), string(header)}})
	if err == nil {
		o.Wake()
	}
	return n, err
}

// tidy waits for its turn, and runs a statement that counts.
func (o *Outbox) tidy(ctx context.Context, s statement) (int, error) {
	var n int
	err := o.pipeline(ctx, 2, []eachRowFunc{func(scan func(...any) error) error { return scan(&n) }},
		begin, statement{o.sql.tidyLock, []any{lockTimeoutOf(ctx)}}, s, commit)
	if err != nil {
		return 0, err
	}
	return n, nil
}
