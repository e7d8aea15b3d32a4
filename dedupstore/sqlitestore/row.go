package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// columns are what scan reads, but for the contents, which come last.
const columns = `number, key, state, owner, fence, attempts, returned, started, lease_until, due_at, first_at,
	expires_at, scheme, sum, settled, trace, decided, kind, exhausted, truncated, reason, result, stubs,
	coalesce(holder, ''), took_ms, history, coalesce(reruns, 0), coalesce(crashes, 0)`

const loadSQL = `SELECT ` + columns + `, contents FROM "{table}" WHERE key = ?`

// saveSQL leaves a record its number.
const saveSQL = `
INSERT OR REPLACE INTO "{table}" (number, key, state, owner, fence, attempts, returned, started, lease_until, due_at,
	first_at, expires_at, scheme, sum, settled, trace, decided, kind, exhausted, truncated, reason, result, stubs,
	contents, holder, took_ms, history, reruns, crashes)
VALUES (nullif(?, 0), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// A querier runs a statement that returns a row, in a transaction or outside.
type querier interface {
	QueryRowContext(ctx context.Context, args ...any) *sql.Row
}

// load reads the record of a key as it counts now. It is never nil without an error.
func load(ctx context.Context, q querier, key string, now time.Time) (*sqlstore.Row, error) {
	rec, err := scan(q.QueryRowContext(ctx, key), now)
	if errors.Is(err, sql.ErrNoRows) {
		rec, err = &sqlstore.Row{Key: key}, nil
	}
	if err != nil {
		return nil, err
	}
	if !now.Before(rec.Expires) { // it is like one that never was, but for the fence, which has to grow
		rec.Stored = dedupstore.Stored{Fence: rec.Fence}
	}
	return rec, nil
}

// scan reads the record of a row as it counts now, and what comes after it in the row.
func scan(row interface{ Scan(to ...any) error }, now time.Time, after ...any) (*sqlstore.Row, error) {
	rec := &sqlstore.Row{}
	o := &rec.Outcome
	var col struct { // one allocation
		settled, state, kind                       string
		fence, decided, lease, due, first, expires int64
		took                                       sql.NullInt64 // milliseconds, of the last run
		reason, result, stubs, contents, history   []byte
	}
	err := row.Scan(append([]any{&rec.Number, &rec.Key, &col.state, &rec.Owner, &col.fence, &rec.Attempts,
		&rec.Returned, &rec.Started, &col.lease, &col.due, &col.first, &col.expires, &rec.Fingerprint.Scheme,
		&rec.Fingerprint.Sum, &col.settled, &rec.Trace, &col.decided, &col.kind, &o.Exhausted, &o.Truncated,
		&col.reason, &col.result, &col.stubs, &rec.Holder, &col.took, &col.history, &rec.Reruns, &rec.Crashes,
		&col.contents},
		after...)...)
	if err != nil {
		return nil, err
	}
	rec.State, o.Kind, o.Reason = dedupstore.State(col.state), dedupstore.Kind(col.kind), string(col.reason)
	rec.Lease, rec.Due = sqlstore.TimeAt(col.lease), sqlstore.TimeAt(col.due)
	rec.First, rec.Expires = sqlstore.TimeAt(col.first), sqlstore.TimeAt(col.expires)
	rec.Fence, rec.Decided = uint64(col.fence), uint64(col.decided)
	rec.Claimed = time.UnixMicro(col.fence) // as far as the clock was not set back
	if col.took.Valid {
		rec.Ended = rec.Claimed.Add(time.Duration(col.took.Int64) * time.Millisecond)
	}
	if col.settled != "" {
		rec.Settled = strings.Split(col.settled, ",")
	}
	if col.history != nil {
		_ = json.Unmarshal(col.history, &rec.History) // evidence: a text that is none counts for nothing
	}
	if len(col.result) > 0 {
		o.Result = col.result
	}
	rec.Read(col.stubs, col.contents, now)
	return rec, nil
}

// save writes a record. The caller has the write lock since before it was loaded.
func (s *Store) save(ctx context.Context, tx *sql.Tx, rec *sqlstore.Row) error {
	o := &rec.Outcome
	var took, history any
	if !rec.Ended.IsZero() {
		took = rec.Ended.Sub(rec.Claimed).Milliseconds()
	}
	if len(rec.History) > 0 {
		text, _ := json.Marshal(rec.History)
		history = string(text)
	}
	_, err := tx.StmtContext(ctx, s.statements.save).ExecContext(ctx,
		rec.Number, rec.Key, string(rec.State), rec.Owner, int64(rec.Fence), rec.Attempts, rec.Returned, rec.Started,
		sqlstore.MicrosAt(rec.Lease), sqlstore.MicrosAt(rec.Due), sqlstore.MicrosAt(rec.First),
		sqlstore.MicrosAt(rec.Expires), rec.Fingerprint.Scheme, rec.Fingerprint.Sum, strings.Join(rec.Settled, ","),
		rec.Trace, int64(rec.Decided), string(o.Kind), o.Exhausted, o.Truncated, []byte(o.Reason),
		append([]byte{}, o.Result...), // nil would be NULL
		sqlstore.EncodeStubs(o.Produced), sqlstore.Contents(&rec.Stored), rec.Holder, took, history, rec.Reruns,
		rec.Crashes)
	return err
}

// clock is the store's: this machine's, in microseconds.
func clock() time.Time { return time.UnixMicro(time.Now().UnixMicro()) }
