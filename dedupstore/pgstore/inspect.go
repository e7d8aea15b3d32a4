package pgstore

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
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
	seen, ids := make([]dedupstore.Record, len(keys)), make([][]byte, len(keys))
	for i, key := range keys {
		ids[i] = idOf(key.String())
	}
	found := map[string]*sqlstore.Row{}
	var b pgx.Batch
	b.Queue(useIndexes)
	b.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	load(&b, f.store.sql.look, ids, found, &now)
	if err := f.store.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, now, err
	}
	for i, key := range keys {
		rec := cmp.Or(found[string(ids[i])], &sqlstore.Row{})
		if rec.Err != nil {
			return nil, now, rec.Err
		}
		seen[i] = rec.Look(key, now)
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

// NoteDuplicates implements [dedupstore.Inspector].
func (f *form) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	n := len(duplicates)
	ids, counts, lasts := make([][]byte, n), make([]int64, n), make([]time.Time, n)
	for i, d := range duplicates {
		ids[i], counts[i], lasts[i] = idOf(d.Key.String()), int64(d.Count), d.Last
	}
	err := f.store.again(ctx, func() error {
		var batch pgx.Batch
		batch.Queue(useIndexes + beHasty)
		batch.Queue(f.store.sql.note, ids, counts, lasts)
		return f.store.pool.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return f.store.failed("note duplicates", err)
	}
	return nil
}
