package sqliteoutbox

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/outbox"
)

const leaseSQL = `
UPDATE "{table}" SET token = ?1, due_at = ?2, unknowns = unknowns + (token IS NOT NULL)
WHERE number IN (
	SELECT number FROM "{table}"
	WHERE published_at IS NULL AND dead_at IS NULL AND (unknowns > 0 OR token IS NOT NULL) = ?5 AND due_at <= ?3
	ORDER BY due_at LIMIT ?4)
RETURNING number, id, topic, key, header, replays, payload, failures, unknowns, not_before`

// Lease implements [outbox.Store].
func (o *Outbox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	var rows []outbox.Row
	err := o.patiently(ctx, func(conn *sql.Conn) (err error) {
		at := now()
		rows, err = collect(conn.QueryContext(ctx, o.sql.lease, r.Token, at+r.Lease.Microseconds(), at, r.Limit,
			r.Suspects))
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b outbox.Row) int { // the oldest first
		return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Number, b.Number))
	})
	return rows, nil
}

func collect(found *sql.Rows, err error) (rows []outbox.Row, _ error) {
	if err != nil {
		return nil, err
	}
	defer found.Close()
	at := time.Now()
	for found.Next() {
		var r outbox.Row
		var header []byte
		var replays int
		var notBefore int64
		m := &r.Message
		if err := found.Scan(&r.Number, &m.ID, &m.Topic, &m.Key, &header, &replays, &m.Payload, &r.Failures,
			&r.Unknowns, &notBefore); err != nil {
			return nil, err
		}
		if m.Header, err = outgoing.Header(m.ID, header, replays); err != nil { // it must not hold up other rows
			r.Problem = err.Error()
		}
		if m.Payload == nil {
			m.Payload = []byte{} // which the driver does not tell from nil, and Kafka takes nil for a tombstone
		}
		r.Age = max(0, at.Sub(time.UnixMicro(notBefore)))
		rows = append(rows, r)
	}
	return rows, found.Err()
}

const (
	publishedSQL = `
UPDATE "{table}" SET token = NULL, published_at = ?1
WHERE token = ?2 AND number IN (SELECT value FROM json_each(?3))`

	removedSQL = `
DELETE FROM "{table}" WHERE token = ?1 AND number IN (SELECT value FROM json_each(?2))`

	unsentSQL = `
UPDATE "{table}" SET token = NULL, due_at = ?1, dead_at = ?2, failures = failures + ?3, unknowns = unknowns + ?4,
	last_error = ?5
WHERE token = ?6 AND number = ?7`

	backSQL = `UPDATE "{table}" SET token = NULL, due_at = not_before WHERE token = ?1`
)

// Settle implements [outbox.Store].
func (o *Outbox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	return o.inTx(ctx, func(tx *sql.Tx) error {
		if err := o.record(ctx, tx, token, results); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, o.sql.back, token)
		return err
	})
}

// inTx runs fn in a transaction.
func (o *Outbox) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	return o.patiently(ctx, func(conn *sql.Conn) error {
		tx, err := conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			_ = tx.Rollback() // the first error counts
			return err
		}
		return tx.Commit()
	})
}

// record writes the results of rows that the token holds.
func (o *Outbox) record(ctx context.Context, tx *sql.Tx, token string, results []outbox.Result) error {
	at := now()
	var published, removed []int64
	for _, r := range results {
		var dead sql.NullInt64
		var failures, unknowns int
		switch r.State {
		case outbox.Published:
			published = append(published, r.Number)
			continue
		case outbox.Removed:
			removed = append(removed, r.Number)
			continue
		case outbox.Failed:
			failures = 1
		case outbox.Unknown:
			unknowns = 1
		case outbox.Dead:
			failures, dead = 1, sql.NullInt64{Int64: at, Valid: true}
		default:
			return &dedupstore.InvalidError{Package: "sqliteoutbox", Field: "Result.State",
				Problem: fmt.Sprintf("is %q", r.State)}
		}
		due := at + r.Delay.Microseconds()
		if _, err := tx.ExecContext(ctx, o.sql.unsent, due, dead, failures, unknowns, r.Error, token,
			r.Number); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, o.sql.published, at, token, list(published)); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, o.sql.removed, token, list(removed))
	return err
}

const cleanSQL = `
DELETE FROM "{table}" WHERE number IN (
	SELECT number FROM "{table}" WHERE published_at IS NOT NULL AND published_at <= ?1 ORDER BY published_at LIMIT ?2)`

// Clean implements [outbox.Store].
func (o *Outbox) Clean(ctx context.Context, age time.Duration, limit int) (removed int, err error) {
	err = o.patiently(ctx, func(conn *sql.Conn) (err error) {
		removed, err = change(ctx, conn, o.sql.clean, now()-age.Microseconds(), limit)
		return err
	})
	return removed, err
}
