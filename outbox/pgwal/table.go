package pgwal

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// The planner does not look into a list in a separate SELECT; doing so would cost as much as finding the rows.
const knownSQL = `
SELECT number, written_at, coalesce(failures, 0)
FROM {table} WHERE number = ANY((SELECT $1::bigint[])::bigint[]) AND published_at IS NULL AND dead_at IS NULL
	AND due_at IS NULL`

var restSQL = `
WITH held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease} WHERE ends_at > clock_timestamp()),
due AS MATERIALIZED (` + eachPart(`
	SELECT number FROM {table}
	WHERE {part} AND due_at IS NOT NULL AND {due} <= (SELECT clock_timestamp())
		AND number <> ALL ($1::bigint[]) AND number NOT IN (SELECT number FROM held)
	ORDER BY {order} LIMIT $2::bigint`) + `)
SELECT number, written_at, id, topic, coalesce(key, ''), header::text, payload,
	coalesce(failures, 0), coalesce(unknowns, 0), coalesce(replays, 0)
FROM (
	SELECT o.*,
		sum(octet_length(payload)) OVER (ORDER BY place, due_at, written_at, number) - octet_length(payload) AS before
	FROM {table} o JOIN due USING (number)) AS o
WHERE before < $3::bigint ORDER BY place, due_at, written_at, number LIMIT $2::bigint`

var unseenSQL = `
SELECT number, written_at, pg_current_wal_insert_lsn()
FROM (` + eachPart(`
	SELECT number, written_at FROM {table} WHERE {part} AND due_at IS NULL
	ORDER BY {order} LIMIT $1::bigint`) + `) AS o`

const markSQL = `
UPDATE {table} o SET due_at = o.written_at
FROM unnest($1::bigint[], $2::timestamptz[]) AS r (number, written_at)
WHERE o.number = r.number AND o.written_at = r.written_at
	AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL`

// The plan must not depend on the table's statistics. Values may come as text, which pgx reads in one style.
const planSQL = `
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	set_config('datestyle', 'ISO', true), set_config('bytea_output', 'hex', true)`

// eachPart queries all pending rows, in parts with an index each.
func eachPart(query string) string {
	var parts []string
	for _, p := range [...][3]string{
		{`unknowns IS NULL AND place IS NULL`, `coalesce(due_at, written_at)`, `coalesce(due_at, written_at)`},
		{`unknowns IS NULL AND place IS NOT NULL`, `due_at`, `place`},
		{`unknowns IS NOT NULL`, `coalesce(due_at, written_at)`, `coalesce(due_at, written_at)`},
	} {
		in := strings.NewReplacer("{part}", "published_at IS NULL AND dead_at IS NULL AND "+p[0],
			"{due}", p[1], "{order}", p[2])
		parts = append(parts, "("+in.Replace(query)+")")
	}
	return strings.Join(parts, " UNION ALL ")
}

// located is the quoted name of one of pgoutbox's tables. It needs no escaping: pgoutbox has checked it.
func (c Config) located(ending string) string {
	quoted := `"` + c.Table + ending + `"`
	if c.Schema == "" {
		return quoted
	}
	return `"` + c.Schema + `".` + quoted
}

// query runs a statement with a plan that uses indexes, in one transaction and one round trip. It scans each row and
// calls fn. After an error inside the transaction the pool closes the connection, which rolls back.
func (r *Relay) query(ctx context.Context, scans []any, fn func(), query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
	defer cancel()
	var batch pgx.Batch
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(planSQL)
	batch.Queue(r.tables.Replace(query), args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, scans, func() error { fn(); return nil })
		return err
	})
	batch.Queue("COMMIT")
	return r.cfg.Pool.SendBatch(ctx, &batch).Close()
}

// micros is a time as the log shows it.
func micros(t time.Time) int64 { return t.Sub(epoch).Microseconds() }

// lookUp removes rows from a burst unless the table shows them as pending and new, and gives the others their failures.
// A row that is not visible yet is found in the table later.
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
	var known row
	var at time.Time
	failures := map[rowID]int{}
	err := r.query(ctx, []any{&known.number, &at, &known.failures}, func() {
		failures[rowID{known.number, micros(at)}] = known.failures
	}, knownSQL, numbers)
	if err != nil {
		return r.explain("look rows up", err)
	}
	for i, e := range burst {
		if e.row == nil {
			continue
		}
		n, pending := failures[e.row.rowID]
		e.row.failures = n
		if !pending {
			burst[i].row = nil
		}
	}
	return nil
}

// rest returns rows that became due without the log showing it, up to limit rows or about so many bytes.
func (r *Relay) rest(ctx context.Context, exclude []int64, limit, bytes int) (found []*row, err error) {
	var o row
	var at time.Time
	var header []byte
	m := &o.message
	err = r.query(ctx, []any{&o.number, &at, &m.ID, &m.Topic, &m.Key, &header, &m.Payload, &o.failures, &o.unknowns,
		&o.replays}, func() {
		one := o
		one.at = micros(at)
		one.readHeader(header)
		found = append(found, &one)
	}, restSQL, exclude, int64(limit), int64(bytes))
	return found, err
}

// An unseen holds new rows and a place in the log after their commits. If a row is still pending when the log has shown
// everything before that place, and is not in memory, the log never showed it: it is older than the slot.
type unseen struct {
	numbers []int64
	written []time.Time
	after   pglogrepl.LSN // zero: there are none
}

func (r *Relay) unseen(ctx context.Context, limit int) (u unseen, err error) {
	var number int64
	var at time.Time
	err = r.query(ctx, []any{&number, &at, &u.after}, func() {
		u.numbers, u.written = append(u.numbers, number), append(u.written, at)
	}, unseenSQL, int64(limit))
	return u, err
}

// mark makes rows due that the log never showed, and returns how many.
func (r *Relay) mark(ctx context.Context, u unseen) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, r.limits.storeTimeout)
	defer cancel()
	tag, err := r.cfg.Pool.Exec(ctx, r.tables.Replace(markSQL), u.numbers, u.written)
	return int(tag.RowsAffected()), err
}
