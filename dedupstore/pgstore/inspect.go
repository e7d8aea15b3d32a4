package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

const (
	// lookSQL reads records by their IDs, and what is beside each by its ID, too: OFFSET 0 keeps plans from reading a
	// whole table.
	lookSQL = `
SELECT x.key, x.state, b.lease_until IS NOT NULL AND b.unstarted IS DISTINCT FROM x.fence, x.fence,
	coalesce(x.decided, 0), x.attempts, x.returned, x.first_at, x.took_ms,
	coalesce(b.lease_until, x.lease_until, x.not_before), coalesce(b.expires_at, x.expires_at),
	coalesce(x.holder, ''), x.trace, x.history, coalesce(x.kind, ''),
	coalesce(x.exhausted, false), coalesce(x.truncated, false), coalesce(x.reason, ''), x.result, x.stubs,
	coalesce(d.copies, 0), d.last_at
FROM {records} x
LEFT JOIN LATERAL (SELECT b.lease_until, b.expires_at, b.unstarted FROM {beats} b
	WHERE b.id = x.id AND b.fence = x.fence AND b.state = x.state OFFSET 0) b ON true
LEFT JOIN LATERAL (SELECT d.copies, d.last_at FROM {duplicates} d
	WHERE d.id = x.id AND d.first_at = x.first_at OFFSET 0) d ON true
WHERE x.id = ANY ($1::bytea[]) AND coalesce(b.expires_at, x.expires_at) > clock_timestamp()`

	// noteSQL counts duplicates of keys that have a record, in the order of their IDs, so that two of it never wait for
	// each other in a circle.
	noteSQL = `
INSERT INTO {duplicates} AS d (id, copies, first_at, last_at)
SELECT n.id, n.copies, n.first_at, n.last_at FROM (
	SELECT u.id, sum(u.copies)::bigint AS copies, max(u.last_at) AS last_at,
		(SELECT x.first_at FROM {records} x WHERE x.id = u.id) AS first_at
	FROM unnest($1::bytea[], $2::bigint[], $3::timestamptz[]) AS u (id, copies, last_at) GROUP BY u.id) AS n
WHERE n.first_at IS NOT NULL ORDER BY n.id
ON CONFLICT (id) DO UPDATE SET
	copies = excluded.copies + CASE WHEN d.first_at = excluded.first_at THEN d.copies ELSE 0 END,
	first_at = excluded.first_at, last_at = greatest(d.last_at, excluded.last_at)`
)

// A past attempt is an element of a record's history.
type past struct {
	Fence          int64  // also when it was claimed, in µs of the Unix era
	Took           *int64 // ms
	Holder, Reason string
}

// Look implements [dedupstore.Inspector].
func (f *form) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	seen := make([]dedupstore.Record, len(keys))
	places, ids := make(map[string][]int), make([][]byte, len(keys))
	for i, key := range keys {
		seen[i] = dedupstore.Record{Key: key, State: dedupstore.Absent}
		name := key.String()
		places[name], ids[i] = append(places[name], i), idOf(name)
	}
	var batch pgx.Batch
	batch.Queue(callHurry)
	batch.Queue(f.store.sql.look, ids).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			name, record, err := scanRecord(rows)
			if err != nil {
				return err
			}
			for _, i := range places[name] {
				record.Key = keys[i]
				seen[i] = record
			}
		}
		return rows.Err()
	})
	if err := f.store.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, f.store.failed("look", err)
	}
	return seen, nil
}

// scanRecord reads a row of lookSQL. The key comes by its name.
func scanRecord(rows pgx.Rows) (name string, r dedupstore.Record, err error) {
	var took *int64
	var until, last *time.Time
	var history []past
	var kept answer
	err = rows.Scan(&name, &r.State, &r.Started, &r.Fence, &r.Decided, &r.Attempts, &r.Returned, &r.First, &took,
		&until, &r.Expires, &r.Holder, &r.Trace, &history, &kept.kind, &kept.exhausted, &kept.truncated, &kept.reason,
		&kept.result, &kept.stubs, &r.Duplicates, &last)
	if err != nil {
		return "", r, err
	}
	r.Started = r.Started && r.State == dedupstore.Running
	r.Claimed, r.Ended = times(int64(r.Fence), took)
	if until != nil {
		r.Until = *until
	}
	if last != nil {
		r.LastDuplicate = *last
	}
	for _, p := range history {
		a := dedupstore.Attempt{Holder: p.Holder, Reason: decodeText(p.Reason)}
		a.Claimed, a.Ended = times(p.Fence, p.Took)
		r.History = append(r.History, a)
	}
	r.Outcome.Reason = decodeText(kept.reason)
	if r.State == dedupstore.Publishing || r.State == dedupstore.Finished {
		r.Outcome, err = kept.outcome(name)
	}
	return name, r, err
}

// times are when a run was claimed, and when it ended.
func times(fence int64, took *int64) (claimed, ended time.Time) {
	claimed = time.UnixMicro(fence)
	if took != nil {
		ended = claimed.Add(time.Duration(*took) * time.Millisecond)
	}
	return claimed, ended
}

// NoteDuplicates implements [dedupstore.Inspector].
func (f *form) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	n := len(duplicates)
	ids, counts, lasts := make([][]byte, n), make([]int64, n), make([]time.Time, n)
	for i, d := range duplicates {
		ids[i], counts[i], lasts[i] = idOf(d.Key.String()), int64(d.Count), d.Last
	}
	err := f.store.again(ctx, func() error {
		var batch pgx.Batch
		batch.Queue(callHurry)
		batch.Queue(f.store.sql.note, ids, counts, lasts)
		return f.store.pool.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return f.store.failed("note duplicates", err)
	}
	return nil
}
