package pgstore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

const (
	// rowSQL is what scan reads of a record, but for its contents and duplicates.
	rowSQL = `
SELECT x.id, x.key, x.state, x.owner, x.fence, x.decided, x.attempts, x.returned, x.reruns, x.crashes,
	b.lease_until IS NOT NULL AND b.unstarted IS DISTINCT FROM x.fence, coalesce(b.lease_until, x.lease_until),
	x.not_before, coalesce(b.expires_at, x.expires_at), x.first_at, x.took_ms, x.holder, x.trace, x.print, x.settled,
	x.history, x.kind, x.exhausted, x.truncated, x.reason, x.result, x.stubs, clock_timestamp(), `

	// What is beside each record is read by its ID: OFFSET 0 keeps plans from reading a whole table.
	beatSQL = `
LEFT JOIN LATERAL (SELECT b.lease_until, b.expires_at, b.unstarted FROM {beats} b
	WHERE x.state IN ('running', 'publishing') AND b.id = x.id AND b.fence = x.fence AND b.state = x.state OFFSET 0) b
	ON true`
	copiesSQL = `
LEFT JOIN LATERAL (SELECT d.copies, d.last_at FROM {duplicates} d
	WHERE d.id = x.id AND d.first_at = x.first_at OFFSET 0) d ON true`

	// loadSQL reads the records of IDs as operations need them, lookSQL as people do.
	loadSQL = rowSQL + `x.contents, NULL::bigint, NULL::timestamptz FROM {records} x` + beatSQL + `
WHERE x.id = ANY ($1::bytea[])`
	lookSQL = seenSQL + ` FROM {records} x` + beatSQL + copiesSQL + ` WHERE x.id = ANY ($1::bytea[])`
	seenSQL = rowSQL + `NULL::bytea, d.copies, d.last_at`

	// lockSQL locks the records of IDs, but for those that others have locked.
	lockSQL = `SELECT x.id FROM {records} x WHERE x.id = ANY ($1::bytea[]) FOR NO KEY UPDATE SKIP LOCKED`

	// saveSQL writes a record. Its date of cleaning stays if it will do, so that no index is written.
	saveSQL = `
UPDATE {records} x SET
	state = $2::text, owner = $3::text, fence = $4::bigint, decided = $5::bigint, attempts = $6::bigint,
	returned = $7::bigint, reruns = $8::bigint, crashes = $9::bigint, lease_until = $10::timestamptz,
	not_before = $11::timestamptz, expires_at = $12::timestamptz, first_at = $13::timestamptz, took_ms = $14::bigint,
	holder = $15::text, trace = $16::text, print = $17::text, settled = $18::text[], history = $19::text::jsonb,
	kind = $20::text, exhausted = $21::boolean, truncated = $22::boolean, reason = $23::text, result = $24::bytea,
	stubs = $25::bytea, contents = $26::bytea,
	clean_at = CASE WHEN x.clean_at BETWEEN $12::timestamptz AND $12::timestamptz + $27::interval * 2 THEN x.clean_at
		ELSE $12::timestamptz + $27::interval / 16 END
WHERE x.id = $1::bytea`
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

// scan reads a row of rowSQL, after some columns.
func scan(rows pgx.Rows, before ...any) (*sqlstore.Row, time.Time, error) {
	r := new(sqlstore.Row)
	s, o := &r.Stored, &r.Outcome
	var now time.Time
	var id, history, stubs, contents []byte
	var print string
	var fence int64
	var took *int64
	var decided, reruns, crashes, copies zeronull.Int8
	var exhausted, truncated *bool
	err := rows.Scan(append(before, &id, &r.Key, &s.State, &s.Owner, &fence, &decided, &s.Attempts, &s.Returned,
		&reruns, &crashes, &s.Started, (*zeronull.Timestamptz)(&s.Lease), (*zeronull.Timestamptz)(&s.Due),
		&s.Expires, &s.First, &took, (*zeronull.Text)(&s.Holder), &s.Trace, &print, &s.Settled, &history,
		(*zeronull.Text)(&o.Kind), &exhausted, &truncated, (*zeronull.Text)(&o.Reason), &o.Result, &stubs, &now,
		&contents, &copies, (*zeronull.Timestamptz)(&s.LastDuplicate))...)
	if err != nil {
		return nil, now, err
	}
	r.ID = string(id)
	s.Fence, s.Decided, s.Reruns, s.Crashes = uint64(fence), uint64(decided), int(reruns), int(crashes)
	s.Duplicates = int(copies)
	s.Claimed, s.Ended = times(fence, took)
	s.Fingerprint.Scheme, s.Fingerprint.Sum, _ = strings.Cut(print, ":")
	o.Exhausted, o.Truncated = exhausted != nil && *exhausted, truncated != nil && *truncated
	o.Reason = decodeText(o.Reason)
	s.History = decodeHistory(history)
	if o.Produced, err = sqlstore.DecodeProduced(stubs, contents); err != nil {
		r.Err = &dedupstore.RecordError{Key: r.Key, Problem: err.Error()}
	}
	kinds := []dedupstore.Kind{dedupstore.Succeeded, dedupstore.Failed, dedupstore.Unknown}
	if (s.State == dedupstore.Publishing || s.State == dedupstore.Finished) && !slices.Contains(kinds, o.Kind) {
		r.Err = &dedupstore.RecordError{Key: r.Key, Problem: fmt.Sprintf("has an outcome of the kind %q", o.Kind)}
	}
	return r, now, nil
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

// encodeHistory is NULL for none. A text is for people: see together.
func encodeHistory(attempts []dedupstore.Attempt, text func(string) string) *string {
	if len(attempts) == 0 {
		return nil
	}
	all := make([]past, len(attempts))
	for i, a := range attempts {
		all[i] = past{Fence: a.Claimed.UnixMicro(), Took: tookOf(a.Claimed, a.Ended), Holder: text(a.Holder),
			Reason: text(encodeText(a.Reason))}
	}
	b, _ := json.Marshal(all)
	return new(string(b))
}

// saveArgs are the arguments of saveSQL.
func saveArgs(r *sqlstore.Row, now time.Time, text func(string) string) []any {
	s, o := &r.Stored, &r.Outcome
	var result, contents []byte
	if len(o.Result) > 0 {
		result = o.Result
	}
	if s.State == dedupstore.Publishing && len(o.Produced) > 0 {
		contents = sqlstore.EncodeContents(o.Produced)
	}
	return []any{
		[]byte(r.ID), string(s.State), s.Owner, int64(s.Fence), zeronull.Int8(s.Decided), s.Attempts, s.Returned,
		zeronull.Int8(s.Reruns), zeronull.Int8(s.Crashes), stamp(s.Lease), stamp(s.Due), stamp(s.Expires),
		stamp(s.First), tookOf(s.Claimed, s.Ended), zeronull.Text(text(s.Holder)), s.Trace, printOf(s.Fingerprint),
		s.Settled,
		encodeHistory(s.History, text), zeronull.Text(o.Kind), orNull(o.Exhausted), orNull(o.Truncated),
		zeronull.Text(text(encodeText(o.Reason))), result, sqlstore.EncodeStubs(o.Produced), contents,
		interval(sqlstore.Micros(max(0, s.Expires.Sub(now)))),
	}
}

// printOf is a fingerprint as tables have it: scheme and sum, or empty.
func printOf(f dedupstore.Fingerprint) string {
	if f.IsZero() {
		return ""
	}
	return f.Scheme + ":" + f.Sum
}

// stamp is a time as tables have it, rounded up to microseconds: nothing ends early.
func stamp(t time.Time) zeronull.Timestamptz {
	return zeronull.Timestamptz(sqlstore.TimeAt(sqlstore.MicrosAt(t)))
}

// orNull is NULL for false.
func orNull(set bool) *bool {
	if !set {
		return nil
	}
	return &set
}

// PostgreSQL's texts cannot have a zero byte, which a reason may have.
var (
	textEncoder = strings.NewReplacer("\\", `\\`, "\x00", `\0`)
	textDecoder = strings.NewReplacer(`\\`, "\\", `\0`, "\x00")
)

func encodeText(s string) string { return textEncoder.Replace(s) }
func decodeText(s string) string { return textDecoder.Replace(s) }
