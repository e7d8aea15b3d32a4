package pgoutbox

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/outbox"
)

const (
	// Each part of the pending rows has an index: those of all rows are not read.
	statsSQL = `
SELECT sum(rows)::bigint,
	coalesce(greatest(0, extract(epoch FROM clock_timestamp() - min(first_due))), 0)::float8,
	(SELECT count(*) FROM {table} WHERE dead_at IS NOT NULL)
FROM (
	SELECT count(*) AS rows, min(coalesce(not_before, written_at)) AS first_due FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NULL
	UNION ALL
	SELECT count(*), min(coalesce(not_before, written_at)) FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NOT NULL
	UNION ALL
	SELECT count(*), min(coalesce(not_before, written_at)) FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL) AS parts`

	// Each part of the rows is read in the order of its index, so that a page goes on where the one before ended. The
	// last row that was looked at is told always: the next page begins behind it.
	toldSQL = `
WITH held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease} WHERE ends_at > clock_timestamp()),
looked AS MATERIALIZED (
	SELECT number, {cursor} AS cursor, id, topic, key, written_at, coalesce(due_at, written_at) AS due,
		coalesce(not_before, written_at) AS first_due, coalesce(dead_at, published_at) AS ended,
		failures, unknowns, replays, last_error, CASE WHEN $8::boolean THEN header END AS header,
		CASE WHEN dead_at IS NOT NULL THEN 'dead' WHEN published_at IS NOT NULL THEN 'published'
			WHEN number IN (SELECT number FROM held) THEN 'leased'
			WHEN coalesce(due_at, written_at) > (SELECT clock_timestamp()) THEN 'delayed' ELSE 'pending' END AS state
	FROM {table} WHERE {rows} AND {order} >= {from} AND ({order}, number) > ({from}, $2::bigint)
	ORDER BY {order}, number LIMIT {looked}),
told AS (
	SELECT *, ($3::text[] IS NULL OR state = ANY($3::text[])) AND ($4::text = '' OR topic = $4::text)
		AND ($5::text = '' OR id = $5::text) AND written_at >= coalesce($6::timestamptz, '-infinity')
		AND written_at < coalesce($7::timestamptz, 'infinity') AS wanted
	FROM looked),
last AS (
	SELECT cursor, number, count(*) OVER () AS looked FROM looked ORDER BY cursor DESC, number DESC LIMIT 1)`

	listSQL = toldSQL + `
SELECT told.cursor, told.number, last.looked, wanted, id, topic, coalesce(key, ''), state, written_at, due, ended,
	coalesce(failures, 0), coalesce(unknowns, 0), coalesce(replays, 0), coalesce(last_error, ''), header::text
FROM told CROSS JOIN last WHERE wanted OR told.number = last.number
ORDER BY told.cursor, told.number LIMIT {page}`

	countSQL = toldSQL + `
SELECT last.cursor, last.number, last.looked, coalesce(topic, ''), coalesce(state, ''), coalesce(rows, 0),
	coalesce(greatest(0, extract(epoch FROM clock_timestamp() - first_due)), 0)::float8
FROM last LEFT JOIN (
	SELECT topic, state, count(*) AS rows, min(first_due) AS first_due FROM told WHERE wanted GROUP BY topic, state
) AS tally ON true`

	// The plan goes along the index of a part, whatever the server knows of the table. See byIndexSQL.
	alongIndexSQL = byIndexSQL + `, set_config('enable_bitmapscan', 'off', true)`

	requeueSQL = `
UPDATE {table} AS o SET dead_at = NULL, due_at = clock_timestamp(), failures = NULL, unknowns = NULL
WHERE ` + shownSQL

	discardSQL = `DELETE FROM {table} AS o WHERE ` + shownSQL

	// shownSQL is true of rows that are still what they were.
	shownSQL = `o.dead_at IS NOT NULL AND EXISTS (
	SELECT FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS shown (id, topic, dead_at)
	WHERE shown.id = o.id AND shown.topic IN ('', o.topic) AND coalesce(shown.dead_at = o.dead_at, true))`
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

// A part is rows that an index has, in its order.
type part struct {
	states []outbox.State
	rows   string
	order  string // what the index sorts by: a time, or a place
}

// parts are those of all rows. Published ones come last, so that a row that is published meanwhile is not missed.
func parts(ordered bool) []part {
	const pending, due = "published_at IS NULL AND dead_at IS NULL AND ", "coalesce(due_at, written_at)"
	waiting := []outbox.State{outbox.Pending, outbox.Delayed, outbox.Leased}
	all := []part{
		{waiting, pending + "unknowns IS NULL AND place IS NULL", due},
		{waiting, pending + "unknowns IS NOT NULL", due},
		{[]outbox.State{outbox.Dead}, "dead_at IS NOT NULL", "dead_at"},
		{[]outbox.State{outbox.Published}, "published_at IS NOT NULL", "published_at"},
	}
	if ordered {
		all = slices.Insert(all, 0, part{waiting, pending + "unknowns IS NULL AND place IS NOT NULL", "place"})
	}
	return all
}

// in makes a statement one about the part.
func (p part) in(query string) string {
	cursor := "(extract(epoch FROM " + p.order + ") * 1000000)::bigint"
	from := "timestamptz 'epoch' + $1::bigint * interval '1 microsecond'"
	if p.order == "place" {
		cursor, from = "place", "$1::bigint"
	}
	return strings.NewReplacer("{rows}", p.rows, "{order}", p.order, "{cursor}", cursor, "{from}", from,
		"{looked}", strconv.Itoa(outgoing.LookedRows), "{page}", strconv.Itoa(outgoing.PageRows)).Replace(query)
}

// List implements [outbox.Inspector]. A filter by message ID reads all rows: they have no index for it.
func (o *Outbox) List(ctx context.Context, f outbox.Filter, after string) (page outbox.Page, err error) {
	page.Next, err = o.look(ctx, listSQL, f, after, func(scan func(...any) error, at *outgoing.Cursor) error {
		var r outbox.RowInfo
		var wanted bool
		var due time.Time
		var ended pgtype.Timestamptz
		var header pgtype.Text
		if err := scan(&at.At, &at.Number, &page.Looked, &wanted, &r.ID, &r.Topic, &r.Key, &r.State, &r.Written, &due,
			&ended, &r.Failures, &r.Unknowns, &r.Replays, &r.Error, &header); err != nil || !wanted {
			return err
		}
		if r.State == outbox.Pending || r.State == outbox.Delayed {
			r.Due = due
		}
		r.Ended = ended.Time
		if f.Header {
			r.Header, _ = outgoing.Header(r.ID, []byte(header.String), r.Replays) // nil if it cannot be read
		}
		page.Rows = append(page.Rows, r)
		return nil
	})
	if err != nil {
		return outbox.Page{}, err
	}
	return page, nil
}

// Count implements [outbox.Inspector].
func (o *Outbox) Count(ctx context.Context, f outbox.Filter, after string) (count outbox.Count, err error) {
	count.Next, err = o.look(ctx, countSQL, f, after, func(scan func(...any) error, at *outgoing.Cursor) error {
		var t outbox.Tally
		var oldest float64
		if err := scan(&at.At, &at.Number, &count.Looked, &t.Topic, &t.State, &t.Rows,
			&oldest); err != nil || t.Rows == 0 {
			return err
		}
		if t.State != outbox.Dead && t.State != outbox.Published {
			t.Oldest = time.Duration(oldest * float64(time.Second))
		}
		count.Tallies = append(count.Tallies, t)
		return nil
	})
	if err != nil {
		return outbox.Count{}, err
	}
	return count, nil
}

// look reads the first part behind after that has rows. It says where the next page begins.
func (o *Outbox) look(
	ctx context.Context, query string, f outbox.Filter, after string,
	row func(scan func(...any) error, at *outgoing.Cursor) error,
) (next string, err error) {
	if err := f.Validate(); err != nil {
		return "", err
	}
	at, err := outgoing.ReadCursor(after)
	if err != nil {
		return "", err
	}
	parts := parts(o.cfg.Ordered)
	for ; at.Part < len(parts); at = outgoing.Part(at.Part + 1) {
		if !f.Wants(parts[at.Part].states...) {
			continue
		}
		last := at
		args := []any{at.At, at.Number, states(f), f.Topic, f.ID, timeOf(f.Since), timeOf(f.Before), f.Header}
		err := o.pipeline(ctx, 2, []eachRowFunc{func(scan func(...any) error) error { return row(scan, &last) }}, begin,
			statement{query: alongIndexSQL}, statement{namesOf(o.cfg).Replace(parts[at.Part].in(query)), args}, commit)
		if err != nil {
			return "", err
		}
		if last != at {
			return last.String(), nil
		}
	}
	return "", nil
}

func states(f outbox.Filter) (texts []string) {
	for _, s := range f.States {
		texts = append(texts, string(s))
	}
	return texts
}

// timeOf is nil for no time.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Requeue implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Requeue(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	return o.free(ctx, o.sql.requeue, dead)
}

// Discard implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Discard(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	return o.free(ctx, o.sql.discard, dead)
}

// free acts on dead rows, and on the rows that wait for them.
func (o *Outbox) free(ctx context.Context, query string, dead []outbox.RowInfo) (int, error) {
	ids, topics, ended := make([]string, len(dead)), make([]string, len(dead)), make([]*time.Time, len(dead))
	for i, row := range dead {
		ids[i], topics[i], ended[i] = row.ID, row.Topic, timeOf(row.Ended)
	}
	tag, err := o.pool.Exec(ctx, query, ids, topics, ended)
	if err != nil {
		return 0, o.explain(err)
	}
	o.Wake()
	return int(tag.RowsAffected()), nil
}
