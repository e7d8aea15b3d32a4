package sqliteoutbox

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// InSQL returns a publisher that writes rows in the caller's transaction. Outboxes of databases that have a client of
// their own beside database/sql have the same method for *sql.Tx, so that code moves from one to the other unchanged.
//
// A message without an ID gets a new one; the trace context of ctx travels along, and of its baggage what
// Config.Baggage names. The caller's messages stay as they are, so give a message its ID (producer.NewID) to know it.
//
// A message whose ID, topic and, for deliberate copies, purpose and generation are in the outbox already is not written
// again, as long as the row is kept: repeating an action does no harm. If its key or payload differ, that is an
// [*outbox.ConflictError]. Headers are not compared, for trace context changes with each repetition.
//
// If that row is dead, it becomes pending again, in the transaction too, with nothing counted and the headers of the
// new message: who repeats the action wants it published.
//
// A message that cannot be written is a [*dedupstore.InvalidError], and then nothing of the call was written. After any
// other error the transaction must be rolled back. One of them says that SQLite has ended the transaction by itself,
// because of a statement whose error was ignored: a message would be published without what was written with it.
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
		return &outbox.InvalidError{Field: "tx", Problem: "is nil"}
	}
	records := make([]record, len(messages))
	for i, m := range messages {
		r, err := w.outbox.newRecord(ctx, m)
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
			return fmt.Errorf("write message %q to outbox: %w", r.message.ID, err)
		}
	}
	return nil
}

// errOver keeps messages from being committed by themselves.
var errOver = errors.New("the transaction is over: SQLite ends it by itself when a disk is full, a statement is " +
	"interrupted or a constraint " +
	"says ROLLBACK; return the errors of its statements")

// within checks that there still is a transaction to write in.
func (w writer) within(ctx context.Context) error {
	if _, err := w.tx.ExecContext(ctx, "BEGIN"); err != nil { // there is one already, or the insert will tell why not
		return nil //nolint:nilerr // that is what is wanted
	}
	_, err := w.tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
	return errors.Join(errOver, err)
}

func (w writer) write(ctx context.Context, insert *sql.Stmt, r record) error {
	m := r.message
	result, err := insert.ExecContext(ctx, m.ID, m.Topic, r.copy, m.Key, r.header, m.Payload, r.written, r.due, r.due)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	var key string
	var payload []byte
	var dead bool
	if err := w.tx.QueryRowContext(ctx, w.outbox.sql.find, m.Topic, m.ID, r.copy).Scan(&key, &payload,
		&dead); err != nil {
		return err
	}
	if key != m.Key || !bytes.Equal(payload, m.Payload) {
		return &outbox.ConflictError{ID: m.ID, Topic: m.Topic}
	}
	if dead {
		_, err := w.tx.ExecContext(ctx, w.outbox.sql.revive, r.header, r.due, m.Topic, m.ID, r.copy)
		return err
	}
	return nil
}

// A record is a message as it is written.
type record struct {
	message      producer.Message
	copy, header string
	written, due int64
}

func (o *Outbox) newRecord(ctx context.Context, m producer.Message) (record, error) {
	ctx, created := telemetry.Create(ctx, m.Topic, m.Header)
	err := producer.Stamp(telemetry.KeepBaggage(ctx, o.baggage), &m)
	created(m.ID)
	if err != nil {
		return record{}, err
	}
	telemetry.Forget(m.Header, producer.HeaderResend)
	if err := validate(m); err != nil {
		return record{}, err
	}
	header, err := json.Marshal(m.Header)
	if err != nil {
		return record{}, err
	}
	if m.Payload == nil {
		m.Payload = []byte{} // nil would be NULL
	}
	r := record{message: m, header: string(header), written: now()}
	if purpose, generation := m.Header.Get(producer.HeaderPurpose),
		m.Header.Get(producer.HeaderGeneration); purpose+generation != "" {
		r.copy = fmt.Sprintf("%q %q", purpose, generation) // quoted: no two pairs look alike
	}
	r.due = r.written
	if !m.NotBefore.IsZero() {
		r.due = max(r.due, m.NotBefore.Add(time.Microsecond-1).UnixMicro()) // rounded up: never early
	}
	return r, nil
}

// Times are kept as microseconds since 1970, which those of far years overflow.
var (
	firstTime = time.Unix(0, 0)
	endOfTime = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// validate refuses what would not come back from the database as it is.
func validate(m producer.Message) error {
	if m.Topic == "" {
		return &dedupstore.InvalidError{Package: "sqliteoutbox", Field: "Message.Topic", Problem: "is empty"}
	}
	if at := m.NotBefore; !at.IsZero() && (at.Before(firstTime) || !at.Before(endOfTime)) {
		return &dedupstore.InvalidError{Package: "sqliteoutbox", Field: "Message.NotBefore",
			Problem: fmt.Sprintf("is in the year %d, want 1970 to 9999", at.UTC().Year())}
	}
	for _, text := range [...]struct{ field, value string }{{"Message.Topic", m.Topic}, {"Message.Key", m.Key}} {
		if !utf8.ValidString(text.value) {
			return &dedupstore.InvalidError{Package: "sqliteoutbox", Field: text.field,
				Problem: fmt.Sprintf("is not valid UTF-8: %q", text.value)}
		}
	}
	for name, value := range m.Header {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return &dedupstore.InvalidError{Package: "sqliteoutbox", Field: fmt.Sprintf("header %q", name),
				Problem: fmt.Sprintf("is not valid UTF-8: %q", value)}
		}
	}
	return nil
}
