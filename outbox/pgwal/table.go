package pgwal

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

const (
	// A list in a SELECT of its own is not looked at when the plan is made, which would cost as much as finding the
	// rows.
	knownSQL = `
SELECT number, written_at, coalesce(failures, 0)
FROM {table} WHERE number = ANY((SELECT $1::bigint[])::bigint[]) AND published_at IS NULL AND dead_at IS NULL
	AND due_at IS NULL`

	// Each part has an index that holds pending rows only.
	restSQL = `
WITH held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease} WHERE ends_at > clock_timestamp()),
due AS MATERIALIZED (
	(SELECT number FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NULL
		AND coalesce(due_at, written_at) <= (SELECT clock_timestamp()) AND due_at IS NOT NULL
		AND number <> ALL ($1::bigint[]) AND number NOT IN (SELECT number FROM held)
	ORDER BY coalesce(due_at, written_at) LIMIT $2::bigint)
	UNION ALL
	(SELECT number FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NOT NULL
		AND due_at IS NOT NULL AND due_at <= (SELECT clock_timestamp())
		AND number <> ALL ($1::bigint[]) AND number NOT IN (SELECT number FROM held)
	ORDER BY place LIMIT $2::bigint)
	UNION ALL
	(SELECT number FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL
		AND coalesce(due_at, written_at) <= (SELECT clock_timestamp()) AND due_at IS NOT NULL
		AND number <> ALL ($1::bigint[]) AND number NOT IN (SELECT number FROM held)
	ORDER BY coalesce(due_at, written_at) LIMIT $2::bigint))
SELECT number, written_at, id, topic, coalesce(key, ''), coalesce(header::text, ''), payload,
	coalesce(failures, 0), coalesce(unknowns, 0), coalesce(replays, 0)
FROM (
	SELECT o.*,
		sum(octet_length(o.payload)) OVER (ORDER BY o.place, o.due_at, o.written_at,
			number) - octet_length(o.payload) AS before
	FROM {table} o JOIN due USING (number)) AS o
WHERE before < $3::bigint ORDER BY place, due_at, written_at, number LIMIT $2::bigint`

	unseenSQL = `
(SELECT number, written_at FROM {table}
WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NULL AND due_at IS NULL
ORDER BY coalesce(due_at, written_at) LIMIT $1::bigint)
UNION ALL
(SELECT number, written_at FROM {table}
WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NOT NULL AND due_at IS NULL
ORDER BY place LIMIT $1::bigint)
UNION ALL
(SELECT number, written_at FROM {table}
WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL AND due_at IS NULL
ORDER BY coalesce(due_at, written_at) LIMIT $1::bigint)`

	markSQL = `
UPDATE {table} o SET due_at = o.written_at
FROM unnest($1::bigint[], $2::timestamptz[]) AS r (number, written_at)
WHERE o.number = r.number AND o.written_at = r.written_at
	AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL`

	// The plan must not depend on what the server knows about the table, which may be nothing. Values may come as text,
	// which pgx reads in one style.
	planSQL = `
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	set_config('datestyle', 'ISO', true), set_config('bytea_output', 'hex', true)`
)

// lookUp takes the rows out of a burst that the table does not show as pending and new, and gives the others their
// failures. A row that nobody sees yet is found in the table later.
func (r *Relay) lookUp(ctx context.Context, burst []event) error {
	var numbers []int64
	for _, e := range burst {
		if e.row != nil {
			numbers = append(numbers, e.row.number)
		}
	}
	if len(numbers) == 0 {
		return nil
	}
	type fact struct {
		at       int64
		failures int
	}
	found := map[int64]fact{}
	err := r.query(ctx, func(rows pgx.Rows) error {
		var number int64
		var written time.Time
		var failures int
		err := rows.Scan(&number, &written, &failures)
		found[number] = fact{micros(written), failures}
		return err
	}, r.sql.known, numbers)
	if err != nil {
		return r.explain("look rows up", err)
	}
	for i, e := range burst {
		if e.row == nil {
			continue
		}
		f, pending := found[e.row.number]
		if !pending || f.at != e.row.at { // then the number is another one's now
			burst[i].row = nil
			continue
		}
		e.row.failures = f.failures
	}
	return nil
}

// query runs a statement with a plan that uses indexes, in a transaction and one round trip, and calls fn for each row.
// After an error inside of the transaction the pool closes the connection, which rolls back.
func (r *Relay) query(ctx context.Context, fn func(pgx.Rows) error, query string, args ...any) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
	defer cancel()
	var batch pgx.Batch
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(planSQL)
	batch.Queue(query, args...)
	batch.Queue("COMMIT")
	results := r.cfg.Pool.SendBatch(ctx, &batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed // of the commit, perhaps
		}
	}()
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	rows.Close()
	return rows.Err()
}

// micros is a time as the log shows it.
func micros(t time.Time) int64 { return t.Sub(epoch).Microseconds() }

// rest returns rows that are due and that the log does not show as such: up to limit, and no more once they have so
// many bytes.
func (r *Relay) rest(ctx context.Context, exclude []int64, limit, bytes int) (found []*row, err error) {
	err = r.query(ctx, func(rows pgx.Rows) error {
		o := &row{}
		m := &o.message
		var written time.Time
		var header string
		err := rows.Scan(&o.number, &written, &m.ID, &m.Topic, &m.Key, &header, &m.Payload, &o.failures, &o.unknowns,
			&o.replays)
		if err != nil {
			return err
		}
		o.at = micros(written)
		o.readHeader([]byte(header))
		found = append(found, o)
		return nil
	}, r.sql.rest, exclude, int64(limit), int64(bytes))
	return found, err
}

// An unseen is rows that are new, and a place in the log after their commits. Once everything before that place is
// settled, those that are pending still were never shown: they were there before the slot.
type unseen struct {
	numbers []int64
	written []time.Time
	after   pglogrepl.LSN // zero: nobody looked
}

func (r *Relay) unseen(ctx context.Context, limit int) (u unseen, err error) {
	err = r.query(ctx, func(rows pgx.Rows) error {
		var number int64
		var written time.Time
		err := rows.Scan(&number, &written)
		u.numbers, u.written = append(u.numbers, number), append(u.written, written)
		return err
	}, r.sql.unseen, int64(limit))
	if err != nil || len(u.numbers) == 0 {
		return unseen{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
	defer cancel()
	if err := r.cfg.Pool.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()`).Scan(&u.after); err != nil {
		return unseen{}, err
	}
	return u, nil
}

// mark makes rows due that the log never showed, and says how many there were.
func (r *Relay) mark(ctx context.Context, u unseen) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
	defer cancel()
	tag, err := r.cfg.Pool.Exec(ctx, r.sql.mark, u.numbers, u.written)
	return int(tag.RowsAffected()), err
}
