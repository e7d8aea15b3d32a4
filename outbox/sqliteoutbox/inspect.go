package sqliteoutbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/internal/outgoing"
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

const (
	// Each part of the rows is read in the order of its index, so that a page goes on where the one before ended. The
	// last row that was looked at is told always: the next page begins behind it.
	toldSQL = `
WITH looked AS MATERIALIZED (
	SELECT *, {order} AS cursor,
		CASE WHEN dead_at IS NOT NULL THEN 'dead' WHEN published_at IS NOT NULL THEN 'published'
			WHEN due_at <= ?3 THEN 'pending' WHEN token IS NOT NULL THEN 'leased' ELSE 'delayed' END AS state
	FROM (
		SELECT number, id, topic, key, iif(?9, header, '') AS header, replays, written_at, not_before, due_at, token,
			failures, unknowns, last_error, published_at, dead_at
		FROM "{table}" WHERE {rows} AND ({order}, number) > (?1, ?2) ORDER BY {order}, number LIMIT {looked})),
told AS (
	SELECT *, (?4 = '[]' OR state IN (SELECT value FROM json_each(?4))) AND (?5 = '' OR topic = ?5)
		AND (?6 = '' OR id = ?6) AND written_at >= ?7 AND written_at < ?8 AS wanted
	FROM looked),
last AS (
	SELECT cursor, number, count(*) OVER () AS looked FROM looked ORDER BY cursor DESC, number DESC LIMIT 1)`

	listSQL = toldSQL + `
SELECT told.cursor, told.number, last.looked, wanted, id, topic, key, state, written_at, due_at,
	coalesce(dead_at, published_at, 0), failures, unknowns, replays, coalesce(last_error, ''), header
FROM told CROSS JOIN last WHERE wanted OR told.number = last.number
ORDER BY told.cursor, told.number LIMIT {page}`

	countSQL = toldSQL + `
SELECT last.cursor, last.number, last.looked, coalesce(topic, ''), coalesce(state, ''), coalesce(rows, 0),
	coalesce(first_due, 0)
FROM last LEFT JOIN (
	SELECT topic, state, count(*) AS rows, min(not_before) AS first_due FROM told WHERE wanted GROUP BY topic, state
) AS tally ON true`
)

// parts are those of all rows, each with what its index sorts by. Published ones come last, so that a row that is
// published meanwhile is not missed.
var parts = [...]struct {
	states      []outbox.State
	rows, order string
}{
	{waiting, "published_at IS NULL AND dead_at IS NULL AND (unknowns > 0 OR token IS NOT NULL) = 0", "due_at"},
	{waiting, "published_at IS NULL AND dead_at IS NULL AND (unknowns > 0 OR token IS NOT NULL) = 1", "due_at"},
	{[]outbox.State{outbox.Dead}, "dead_at IS NOT NULL", "dead_at"},
	{[]outbox.State{outbox.Published}, "published_at IS NOT NULL", "published_at"},
}

var waiting = []outbox.State{outbox.Pending, outbox.Delayed, outbox.Leased}

// partOf makes a statement one about a part.
func (o *Outbox) partOf(n int, query string) string {
	return strings.NewReplacer("{table}", o.table, "{rows}", parts[n].rows, "{order}", parts[n].order,
		"{looked}", strconv.Itoa(outgoing.LookedRows), "{page}", strconv.Itoa(outgoing.PageRows)).Replace(query)
}

// List implements [outbox.Inspector]. A filter by message ID reads all rows: they have no index for it.
func (o *Outbox) List(ctx context.Context, f outbox.Filter, after string) (page outbox.Page, err error) {
	page.Next, err = o.look(ctx, listSQL, f, after, func(rows *sql.Rows, at *outgoing.Cursor) error {
		var r outbox.RowInfo
		var wanted bool
		var written, due, ended int64
		var header []byte
		if err := rows.Scan(&at.At, &at.Number, &page.Looked, &wanted, &r.ID, &r.Topic, &r.Key, &r.State, &written,
			&due, &ended, &r.Failures, &r.Unknowns, &r.Replays, &r.Error, &header); err != nil || !wanted {
			return err
		}
		r.Written = time.UnixMicro(written)
		switch r.State {
		case outbox.Pending, outbox.Delayed:
			r.Due = time.UnixMicro(due)
		case outbox.Dead, outbox.Published:
			r.Ended = time.UnixMicro(ended)
		}
		if f.Header {
			r.Header, _ = outgoing.Header(r.ID, header, r.Replays) // nil if it cannot be read
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
	count.Next, err = o.look(ctx, countSQL, f, after, func(rows *sql.Rows, at *outgoing.Cursor) error {
		var t outbox.Tally
		var first int64
		if err := rows.Scan(&at.At, &at.Number, &count.Looked, &t.Topic, &t.State, &t.Rows,
			&first); err != nil || t.Rows == 0 {
			return err
		}
		if slices.Contains(waiting, t.State) {
			t.Oldest = max(0, time.Since(time.UnixMicro(first)))
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
	ctx context.Context, query string, f outbox.Filter, after string, row func(*sql.Rows, *outgoing.Cursor) error,
) (next string, err error) {
	if err := f.Validate(); err != nil {
		return "", err
	}
	at, err := outgoing.ReadCursor(after)
	if err != nil {
		return "", err
	}
	since, before := int64(0), int64(math.MaxInt64)
	if !f.Since.IsZero() {
		since = f.Since.UnixMicro()
	}
	if !f.Before.IsZero() {
		before = f.Before.UnixMicro()
	}
	for ; at.Part < len(parts); at = outgoing.Part(at.Part + 1) {
		if !f.Wants(parts[at.Part].states...) {
			continue
		}
		last := at
		found, err := o.db.QueryContext(ctx, o.partOf(at.Part, query), at.At, at.Number, now(), list(f.States), f.Topic,
			f.ID, since, before, f.Header)
		if err != nil {
			return "", err
		}
		defer found.Close()
		for found.Next() {
			if err := row(found, &last); err != nil {
				return "", err
			}
		}
		if err := found.Err(); err != nil {
			return "", err
		}
		if last != at {
			return last.String(), nil
		}
	}
	return "", nil
}

const requeueSQL = `
UPDATE "{table}" SET dead_at = NULL, due_at = ?2, failures = 0, unknowns = 0
WHERE ` + shownSQL

// shownSQL is true of rows that are still what they were.
const shownSQL = `dead_at IS NOT NULL AND "{table}".id IN (SELECT value ->> 0 FROM json_each(?1)) AND EXISTS (
	SELECT 1 FROM json_each(?1) AS shown
	WHERE shown.value ->> 0 = "{table}".id AND shown.value ->> 1 IN ('', topic) AND shown.value ->> 2 IN (0, dead_at))`

// Requeue implements [outbox.Inspector], and wakes a relay of this process.
func (o *Outbox) Requeue(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	shown, err := shownRows(dead)
	if err != nil {
		return 0, err
	}
	defer o.Wake()
	return change(ctx, o.db, o.sql.requeue, shown, now())
}

const discardSQL = `DELETE FROM "{table}" WHERE ` + shownSQL

// Discard implements [outbox.Inspector].
func (o *Outbox) Discard(ctx context.Context, dead ...outbox.RowInfo) (int, error) {
	shown, err := shownRows(dead)
	if err != nil {
		return 0, err
	}
	return change(ctx, o.db, o.sql.discard, shown)
}

// shownRows is a list of rows in JSON: the ID, topic and time of each.
func shownRows(dead []outbox.RowInfo) (string, error) {
	rows := make([][3]any, len(dead))
	for i, row := range dead {
		rows[i] = [3]any{row.ID, row.Topic, int64(0)}
		if !row.Ended.IsZero() {
			rows[i][2] = row.Ended.UnixMicro()
		}
	}
	text, err := json.Marshal(rows)
	return string(text), err
}

const replaySQL = `
UPDATE "{table}" SET published_at = NULL, due_at = ?1, failures = 0, unknowns = 0, replays = replays + 1
WHERE number IN (
	SELECT number FROM "{table}"
	WHERE published_at >= ?2 AND published_at < ?3 AND (?4 = '' OR topic = ?4)
		AND (?5 = '[]' OR id IN (SELECT value FROM json_each(?5)))
		AND NOT EXISTS (
			SELECT 1 FROM json_each(nullif(?7, 'null')) AS want WHERE NOT EXISTS (
				SELECT 1 FROM json_each(iif(json_valid(header), header, NULL)) AS has
				WHERE lower(has.key) = lower(want.key) AND has.value = want.value))
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
	header, err := json.Marshal(r.Header)
	if err != nil {
		return 0, err
	}
	defer o.Wake()
	return change(ctx, o.db, o.sql.replay, now(), since, r.Before.UnixMicro(), r.Topic, list(r.IDs), r.Limit,
		string(header))
}
