package pgstore

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
	// rowSQL is what scan reads of a record, but for what only operations or only people need.
	rowSQL = `
SELECT x.id, x.key, x.state, x.fence, x.decided, x.attempts, x.returned, x.reruns, x.crashes,
	b.lease_until IS NOT NULL AND b.unstarted IS DISTINCT FROM x.fence, coalesce(b.lease_until, x.lease_until),
	x.not_before, coalesce(b.expires_at, x.expires_at), x.first_at, x.took_ms, x.holder, x.trace, x.history, x.kind,
	x.exhausted, x.truncated, x.reason, x.result, x.stubs, clock_timestamp(), `

	seenSQL = rowSQL + `'', '', CASE WHEN x.settled[cardinality(x.settled)] = 'operator' THEN ARRAY['operator'] END,
	NULL::bytea, d.copies, d.last_at`

	// What is beside each record is read by its ID: OFFSET 0 keeps plans from reading a whole table.
	beatSQL = `
LEFT JOIN LATERAL (SELECT b.lease_until, b.expires_at, b.unstarted FROM {beats} b
	WHERE x.state IN ('running', 'publishing') AND b.id = x.id AND b.fence = x.fence AND b.state = x.state OFFSET 0) b
	ON true`
	copiesSQL = `
LEFT JOIN LATERAL (SELECT d.copies, d.last_at FROM {duplicates} d
	WHERE d.id = x.id AND d.first_at = x.first_at OFFSET 0) d ON true`

	// loadSQL reads the records of IDs as operations need them, lookSQL as people do.
	loadSQL = rowSQL + `x.owner, x.print, x.settled, x.contents, NULL::bigint, NULL::timestamptz
FROM {records} x` + beatSQL + ` WHERE x.id = ANY ($1::bytea[])`
	lookSQL = seenSQL + ` FROM {records} x` + beatSQL + copiesSQL + ` WHERE x.id = ANY ($1::bytea[])`

	// lockSQL locks the records of IDs, but for those that others have locked.
	lockSQL = `SELECT x.id FROM {records} x WHERE x.id = ANY ($1::bytea[]) FOR NO KEY UPDATE SKIP LOCKED`

	// saveSQL writes records. Their dates of cleaning stay if they will do, so that no index is written.
	saveSQL = `
UPDATE {records} x SET
	state = u.state, owner = u.owner, fence = u.fence, decided = u.decided, attempts = u.attempts,
	returned = u.returned, reruns = u.reruns, crashes = u.crashes, lease_until = u.lease_until,
	not_before = u.not_before, expires_at = u.expires, first_at = u.first_at, took_ms = u.took_ms,
	holder = u.holder, trace = u.trace, print = u.print, settled = string_to_array(u.settled, ','),
	history = u.history::jsonb, kind = u.kind, exhausted = u.exhausted, truncated = u.truncated, reason = u.reason,
	result = u.result, stubs = u.stubs, contents = u.contents, clean_at = {clean_at}
FROM unnest($1::bytea[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
	$9::bigint[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::timestamptz[], $14::bigint[],
	$15::text[], $16::text[], $17::text[], $18::text[], $19::text[], $20::text[], $21::boolean[], $22::boolean[],
	$23::text[], $24::bytea[], $25::bytea[], $26::bytea[]) AS u (id, state, owner, fence, decided, attempts, returned,
	reruns, crashes, lease_until, not_before, expires, first_at, took_ms, holder, trace, print, settled, history,
	kind, exhausted, truncated, reason, result, stubs, contents),
	(SELECT $27::timestamptz AS t) AS now
WHERE x.id = ANY ($1::bytea[]) AND x.id = u.id`
)

// A past attempt is an element of a record's history.
type past struct {
	Fence  int64  `json:"fence"`          // also when it was claimed, in µs of the Unix era
	Took   *int64 `json:"took,omitempty"` // ms
	Holder string `json:"holder,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// idOf is what a record is found by.
func idOf(name string) []byte { return []byte(sqlstore.IDOf(name)) }

// A scanner reads rows of rowSQL.
type scanner struct {
	row sqlstore.Row // that was read last
	now time.Time

	id, history, stubs, contents     []byte
	print                            string
	fence                            int64
	took                             *int64
	decided, reruns, crashes, copies zeronull.Int8
	exhausted, truncated             *bool
	to                               []any
}

// newScanner reads some columns before.
func newScanner(before ...any) *scanner {
	c := new(scanner)
	s, o := &c.row.Stored, &c.row.Outcome
	c.to = append(before, &c.id, &c.row.Key, &s.State, &c.fence, &c.decided, &s.Attempts, &s.Returned, &c.reruns,
		&c.crashes, &s.Started, (*zeronull.Timestamptz)(&s.Lease), (*zeronull.Timestamptz)(&s.Due), &s.Expires,
		&s.First, &c.took, (*zeronull.Text)(&s.Holder), &s.Trace, &c.history, (*zeronull.Text)(&o.Kind),
		&c.exhausted, &c.truncated, (*zeronull.Text)(&o.Reason), &o.Result, &c.stubs, &c.now, &s.Owner, &c.print,
		&s.Settled, &c.contents, &c.copies, (*zeronull.Timestamptz)(&s.LastDuplicate))
	return c
}

func (c *scanner) scan(rows pgx.Rows) error {
	c.row = sqlstore.Row{} // nothing is read into bytes of the row before
	c.id, c.history, c.stubs, c.contents = nil, nil, nil, nil
	if err := rows.Scan(c.to...); err != nil {
		return err
	}
	r := &c.row
	s, o := &r.Stored, &r.Outcome
	r.ID = string(c.id)
	s.Fence, s.Decided, s.Reruns, s.Crashes = uint64(c.fence), uint64(c.decided), int(c.reruns), int(c.crashes)
	s.Duplicates = int(c.copies)
	s.Claimed, s.Ended = times(c.fence, c.took)
	s.Fingerprint.Scheme, s.Fingerprint.Sum, _ = strings.Cut(c.print, ":")
	o.Exhausted, o.Truncated = c.exhausted != nil && *c.exhausted, c.truncated != nil && *c.truncated
	o.Reason = decodeText(o.Reason)
	s.History = decodeHistory(c.history)
	r.Read(c.stubs, c.contents, c.now)
	return nil
}

// times are when a run was claimed, and when it ended.
func times(fence int64, took *int64) (claimed, ended time.Time) {
	claimed = time.UnixMicro(fence)
	if took != nil {
		ended = claimed.Add(time.Duration(*took) * time.Millisecond)
	}
	return claimed, ended
}

// tookOf is how long a run took, in milliseconds.
func tookOf(claimed, ended time.Time) *int64 {
	if ended.IsZero() {
		return nil
	}
	return new(ended.Sub(claimed).Milliseconds())
}

func decodeHistory(history []byte) (all []dedupstore.Attempt) {
	var attempts []past
	if history != nil {
		_ = json.Unmarshal(history, &attempts) // evidence: a text that is none counts for nothing
	}
	for _, p := range attempts {
		a := dedupstore.Attempt{Holder: p.Holder, Reason: decodeText(p.Reason)}
		a.Claimed, a.Ended = times(p.Fence, p.Took)
		all = append(all, a)
	}
	return all
}

// encodeHistory is empty for none.
func encodeHistory(attempts []dedupstore.Attempt, text text) string {
	if len(attempts) == 0 {
		return ""
	}
	all := make([]past, len(attempts))
	for i, a := range attempts {
		all[i] = past{Fence: a.Claimed.UnixMicro(), Took: tookOf(a.Claimed, a.Ended), Holder: text(a.Holder),
			Reason: text(encodeText(a.Reason))}
	}
	b, _ := json.Marshal(all)
	return string(b)
}

// saveArgs are the arguments of saveSQL. Texts for people are written as the function makes them.
func saveArgs(rows []*sqlstore.Row, now time.Time, text text) []any {
	return []any{
		column(rows, func(r *sqlstore.Row) []byte { return []byte(r.ID) }),
		column(rows, func(r *sqlstore.Row) string { return string(r.State) }),
		column(rows, func(r *sqlstore.Row) string { return r.Owner }),
		column(rows, func(r *sqlstore.Row) int64 { return int64(r.Fence) }),
		column(rows, func(r *sqlstore.Row) *int64 { return orNull(int64(r.Decided)) }),
		column(rows, func(r *sqlstore.Row) int64 { return int64(r.Attempts) }),
		column(rows, func(r *sqlstore.Row) int64 { return int64(r.Returned) }),
		column(rows, func(r *sqlstore.Row) *int64 { return orNull(int64(r.Reruns)) }),
		column(rows, func(r *sqlstore.Row) *int64 { return orNull(int64(r.Crashes)) }),
		column(rows, func(r *sqlstore.Row) *time.Time { return stamp(r.Lease) }),
		column(rows, func(r *sqlstore.Row) *time.Time { return stamp(r.Due) }),
		column(rows, func(r *sqlstore.Row) *time.Time { return stamp(r.Expires) }),
		column(rows, func(r *sqlstore.Row) *time.Time { return stamp(r.First) }),
		column(rows, func(r *sqlstore.Row) *int64 { return tookOf(r.Claimed, r.Ended) }),
		column(rows, func(r *sqlstore.Row) *string { return orNull(text(r.Holder)) }),
		column(rows, func(r *sqlstore.Row) string { return r.Trace }),
		column(rows, func(r *sqlstore.Row) string { return printOf(r.Fingerprint) }),
		column(rows, func(r *sqlstore.Row) *string { return orNull(strings.Join(r.Settled, ",")) }),
		column(rows, func(r *sqlstore.Row) *string { return orNull(encodeHistory(r.History, text)) }),
		column(rows, func(r *sqlstore.Row) *string { return orNull(string(r.Outcome.Kind)) }),
		column(rows, func(r *sqlstore.Row) *bool { return orNull(r.Outcome.Exhausted) }),
		column(rows, func(r *sqlstore.Row) *bool { return orNull(r.Outcome.Truncated) }),
		column(rows, func(r *sqlstore.Row) *string { return orNull(text(encodeText(r.Outcome.Reason))) }),
		column(rows, func(r *sqlstore.Row) []byte { return sqlstore.Result(r.Outcome) }),
		column(rows, func(r *sqlstore.Row) []byte { return sqlstore.EncodeStubs(r.Outcome.Produced) }),
		column(rows, func(r *sqlstore.Row) []byte { return sqlstore.Contents(&r.Stored) }),
		now,
	}
}

func column[T any](rows []*sqlstore.Row, value func(*sqlstore.Row) T) []T {
	all := make([]T, len(rows))
	for i, r := range rows {
		all[i] = value(r)
	}
	return all
}

// orNull is NULL for a zero value.
func orNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// stamp is a time as tables have it, rounded up to microseconds: nothing ends early.
func stamp(t time.Time) *time.Time { return orNull(sqlstore.TimeAt(sqlstore.MicrosAt(t))) }

// printOf is a fingerprint as tables have it: scheme and sum, or empty.
func printOf(f dedupstore.Fingerprint) string {
	if f.IsZero() {
		return ""
	}
	return f.Scheme + ":" + f.Sum
}

// PostgreSQL's texts cannot have a zero byte, which a reason may have.
var (
	textEncoder = strings.NewReplacer("\\", `\\`, "\x00", `\0`)
	textDecoder = strings.NewReplacer(`\\`, "\\", `\0`, "\x00")
)

func encodeText(s string) string { return textEncoder.Replace(s) }
func decodeText(s string) string { return textDecoder.Replace(s) }
