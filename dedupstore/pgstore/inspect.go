package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

const (
	lookSQL = seenSQL + ` FROM {records} x` + beatSQL + copiesSQL + ` WHERE ` + liveSQL + `
	AND x.id = ANY ($1::bytea[])`

	seenSQL = `
SELECT x.key, x.state, b.lease_until IS NOT NULL AND b.unstarted IS DISTINCT FROM x.fence, x.fence,
	coalesce(x.decided, 0), x.attempts, x.returned, coalesce(x.reruns, 0),
	CASE WHEN x.state IN ('running', 'retryable') THEN coalesce(x.crashes, 0) ELSE 0 END, x.first_at, x.took_ms,
	coalesce(b.lease_until, x.lease_until, x.not_before), coalesce(b.expires_at, x.expires_at),
	coalesce(x.holder, ''), x.trace, x.history, coalesce(x.kind, ''),
	x.state = 'done' AND coalesce(x.settled[cardinality(x.settled)] = 'operator', false),
	coalesce(x.exhausted, false), coalesce(x.truncated, false), coalesce(x.reason, ''), x.result, x.stubs,
	coalesce(d.copies, 0), d.last_at`

	// What is beside each record is read by its ID: OFFSET 0 keeps plans from reading a whole table.
	beatSQL = `
LEFT JOIN LATERAL (SELECT b.lease_until, b.expires_at, b.unstarted FROM {beats} b
	WHERE x.state IN ('running', 'publishing') AND b.id = x.id AND b.fence = x.fence AND b.state = x.state OFFSET 0) b
	ON true`
	copiesSQL = `
LEFT JOIN LATERAL (SELECT d.copies, d.last_at FROM {duplicates} d
	WHERE d.id = x.id AND d.first_at = x.first_at OFFSET 0) d ON true`
	liveSQL = `coalesce(b.expires_at, x.expires_at) > clock_timestamp()`

	// firstsSQL finds the keys that are locked, as first.sql does it, of those that have no record.
	firstsSQL = `
SELECT k.n FROM unnest($1::text[]) WITH ORDINALITY AS k (key, n)
WHERE hashtextextended(k.key, '{records}'::regclass::oid::bigint) IN (
	SELECT l.classid::bigint << 32 | l.objid::bigint FROM pg_locks l
	WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
		AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))`

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

// Look implements [dedupstore.Inspector]. A first run of an inbox makes its record in its own transaction: until that
// commits, all that is known is that somebody is at it.
func (f *form) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	seen, _, err := f.look(ctx, keys)
	if err != nil {
		return nil, f.store.failed("look", err)
	}
	return seen, nil
}

// look also returns when that was, by the server's clock.
func (f *form) look(ctx context.Context, keys []dedupstore.Key) (_ []dedupstore.Record, now time.Time, _ error) {
	seen := make([]dedupstore.Record, len(keys))
	places, ids := make(map[string][]int), make([][]byte, len(keys))
	for i, key := range keys {
		seen[i] = dedupstore.Record{Key: key, State: dedupstore.Absent}
		name := key.String()
		places[name], ids[i] = append(places[name], i), idOf(name)
	}
	var batch pgx.Batch
	batch.Queue(callHurry)
	batch.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
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
		return nil, now, err
	}
	return seen, now, f.lookFirsts(ctx, seen, now)
}

// shortly is how long a key is said to be held by somebody whose lease is not known. Look again then.
const shortly = time.Second

// lookFirsts makes what is known of first runs that go on.
func (f *form) lookFirsts(ctx context.Context, seen []dedupstore.Record, now time.Time) error {
	var names []string
	var places []int
	for i := range seen {
		if seen[i].State == dedupstore.Absent {
			names, places = append(names, seen[i].Key.String()), append(places, i)
		}
	}
	if len(names) == 0 {
		return nil
	}
	rows, _ := f.store.pool.Query(ctx, f.store.sql.firsts, names)
	var n int
	_, err := pgx.ForEachRow(rows, []any{&n}, func() error {
		r := &seen[places[n-1]]
		r.State, r.Started, r.Holder, r.Until = dedupstore.Running, true, "a first run", now.Add(shortly)
		return nil
	})
	return err
}

// scanRecord reads a row of seenSQL, after some columns. The key comes by its name.
func scanRecord(rows pgx.Rows, before ...any) (name string, r dedupstore.Record, err error) {
	var took *int64
	var until, last *time.Time
	var history []past
	var kept answer
	err = rows.Scan(append(before, &name, &r.State, &r.Started, &r.Fence, &r.Decided, &r.Attempts, &r.Returned,
		&r.Reruns, &r.Crashes, &r.First, &took, &until, &r.Expires, &r.Holder, &r.Trace, &history, &kept.kind,
		&r.ByOperator, &kept.exhausted, &kept.truncated, &kept.reason, &kept.result, &kept.stubs, &r.Duplicates,
		&last)...)
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
