package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// columns are what scan reads, but for the contents, which come last.
const columns = `number, key, state, owner, fence, attempts, returned, started, lease_until, due_at, first_at,
	expires_at, scheme, sum, settled, trace, decided, kind, exhausted, truncated, reason, result, stubs,
	coalesce(holder, ''), took_ms, history, coalesce(reruns, 0)`

const loadSQL = `SELECT ` + columns + `, contents FROM "{table}" WHERE key = ?`

// saveSQL leaves a record its number.
const saveSQL = `
INSERT OR REPLACE INTO "{table}" (number, key, state, owner, fence, attempts, returned, started, lease_until, due_at,
	first_at, expires_at, scheme, sum, settled, trace, decided, kind, exhausted, truncated, reason, result, stubs,
	contents, holder, took_ms, history, reruns)
VALUES (nullif(?, 0), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// A querier runs a statement that returns a row, in a transaction or outside.
type querier interface {
	QueryRowContext(ctx context.Context, args ...any) *sql.Row
}

// load reads the record of a key as it counts now. It is never nil without an error.
func load(ctx context.Context, q querier, key string, now int64) (*record, error) {
	rec, err := scan(q.QueryRowContext(ctx, key))
	if errors.Is(err, sql.ErrNoRows) {
		rec, err = &record{key: key}, nil
	}
	if err != nil {
		return nil, err
	}
	rec.forget(now)
	return rec, nil
}

// scan reads the record of a row, and what comes after it in the row.
func scan(row interface{ Scan(to ...any) error }, after ...any) (*record, error) {
	rec := &record{}
	var settled, state, kind string
	var fence, decided int64
	var reason, result, stubs, contents []byte
	err := row.Scan(append([]any{&rec.number, &rec.key, &state, &rec.owner, &fence, &rec.attempts, &rec.returned,
		&rec.started, &rec.lease, &rec.due, &rec.first, &rec.expires, &rec.fingerprint.Scheme, &rec.fingerprint.Sum,
		&settled, &rec.trace, &decided, &kind, &rec.outcome.Exhausted, &rec.outcome.Truncated,
		&reason, &result, &stubs, &rec.holder, &rec.took, &rec.history, &rec.reruns, &contents}, after...)...)
	if err != nil {
		return nil, err
	}
	rec.state, rec.outcome.Kind, rec.outcome.Reason = dedupstore.State(state), dedupstore.Kind(kind), string(reason)
	known := []dedupstore.State{dedupstore.Running, dedupstore.Retryable, dedupstore.Publishing, dedupstore.Finished}
	if fence <= 0 || decided < 0 || !slices.Contains(known, rec.state) {
		problem := fmt.Sprintf("has state %q, fence %d, decided %d", state, fence, decided)
		return nil, &dedupstore.RecordError{Key: rec.key, Problem: problem}
	}
	rec.fence, rec.decided = uint64(fence), uint64(decided)
	if settled != "" {
		rec.settled = strings.Split(settled, ",")
	}
	if len(result) > 0 {
		rec.outcome.Result = result
	}
	if rec.outcome.Produced, err = sqlstore.DecodeProduced(stubs, contents); err != nil {
		return nil, &dedupstore.RecordError{Key: rec.key, Problem: err.Error()}
	}
	return rec, nil
}

// save writes a record. The caller has the write lock since before it was loaded.
func (s *Store) save(ctx context.Context, tx *sql.Tx, rec *record) error {
	var contents []byte
	if rec.state == dedupstore.Publishing && len(rec.outcome.Produced) > 0 {
		contents = sqlstore.EncodeContents(rec.outcome.Produced)
	}
	_, err := tx.StmtContext(ctx, s.statements.save).ExecContext(ctx,
		rec.number, rec.key, string(rec.state), rec.owner, int64(rec.fence), rec.attempts, rec.returned, rec.started,
		rec.lease, rec.due, rec.first, rec.expires, rec.fingerprint.Scheme, rec.fingerprint.Sum,
		strings.Join(rec.settled, ","), rec.trace, int64(rec.decided), string(rec.outcome.Kind), rec.outcome.Exhausted,
		rec.outcome.Truncated, []byte(rec.outcome.Reason), append([]byte{}, rec.outcome.Result...), // nil would be NULL
		sqlstore.EncodeStubs(rec.outcome.Produced), contents, rec.holder, rec.took, rec.history, rec.reruns)
	return err
}
