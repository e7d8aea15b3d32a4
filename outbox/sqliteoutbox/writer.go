package sqliteoutbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// InSQL returns a publisher that writes rows in the caller's transaction. Outboxes of other databases have the same
// method, so code moves from one to the other unchanged.
//
// A message without an ID gets a new one. The caller's message stays as it is, so set its ID (producer.NewID) if you
// need to know it. The trace context of ctx travels along, its baggage does not.
//
// While a row is kept, a message with the same ID and topic is not written again, so repeating an action does no harm.
// (For deliberate copies, purpose and generation count too.) If its key or payload differs, that is an
// [*outbox.ConflictError]. Headers are not compared, because the trace context changes with each repetition.
//
// If that row is dead, the same transaction makes it pending again, because a repeated action wants it published.
// Nothing is counted then, and the new headers replace the old ones.
//
// A message that cannot be written is a [*dedupstore.InvalidError], and then nothing of the call was written. After any
// other error the transaction must be rolled back. One of them says that SQLite ended the transaction because of a
// statement whose error was ignored. The message would be published without the writes beside it.
func (o *Outbox) InSQL(tx *sql.Tx) producer.Publisher { return writer{o, tx} }

// A writer writes rows in one transaction.
type writer struct {
	outbox *Outbox
	tx     *sql.Tx
}

const insertSQL = `
INSERT INTO "{table}" (id, topic, copy, key, header, payload, written_at, not_before, due_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (topic, id, copy) DO NOTHING`

const findSQL = `SELECT key, payload, dead_at IS NOT NULL FROM "{table}" WHERE topic = ? AND id = ? AND copy = ?`

const reviveSQL = `
UPDATE "{table}" SET dead_at = NULL, header = ?, due_at = ?, failures = 0, unknowns = 0
WHERE topic = ? AND id = ? AND copy = ?`

// Publish implements [producer.Publisher]. See InSQL.
func (w writer) Publish(ctx context.Context, messages ...producer.Message) error {
	if w.tx == nil {
		return &dedupstore.InvalidError{Package: "sqliteoutbox", Field: "tx", Problem: "is nil"}
	}
	records := make([]outgoing.Record, len(messages))
	for i, m := range messages {
		r, err := outgoing.NewRecord(ctx, m)
		if err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
		records[i] = r
	}
	if len(records) == 0 {
		return nil
	}
	if err := w.within(ctx); err != nil {
		return fmt.Errorf("write outbox: %w", err)
	}
	insert, err := w.tx.PrepareContext(ctx, w.outbox.sql.insert)
	if err != nil {
		return fmt.Errorf("write outbox: %w", err)
	}
	defer insert.Close()
	for _, r := range records {
		if err := w.write(ctx, insert, r); err != nil {
			return fmt.Errorf("write message %q to outbox: %w", r.ID, err)
		}
	}
	return nil
}

// errOver keeps messages from being committed without the rest of their transaction.
var errOver = errors.New("the transaction is over: SQLite ends it by itself when a disk is full, a statement is " +
	"interrupted or a constraint says ROLLBACK; return the errors of its statements")

// within checks that there still is a transaction to write in.
func (w writer) within(ctx context.Context) error {
	if _, err := w.tx.ExecContext(ctx, "BEGIN"); err != nil { // there is one already, or the insert will tell why not
		return nil //nolint:nilerr // that is what is wanted
	}
	_, err := w.tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	return errors.Join(errOver, err)
}

func (w writer) write(ctx context.Context, insert *sql.Stmt, r outgoing.Record) error {
	at := now()
	due := max(at, r.Due)
	result, err := insert.ExecContext(ctx, r.ID, r.Topic, r.Copy, r.Key, r.Text, r.Payload, at, due, due)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	var key string
	var payload []byte
	var dead bool
	err = w.tx.QueryRowContext(ctx, w.outbox.sql.find, r.Topic, r.ID, r.Copy).Scan(&key, &payload, &dead)
	switch {
	case err != nil:
		return err
	case key != r.Key || !bytes.Equal(payload, r.Payload):
		return &outbox.ConflictError{ID: r.ID, Topic: r.Topic}
	case dead:
		_, err = w.tx.ExecContext(ctx, w.outbox.sql.revive, r.Text, due, r.Topic, r.ID, r.Copy)
	}
	return err
}
