package pgwal

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// An Emitter writes messages into the log and nowhere else, in the caller's transaction: no table grows, and nothing has
// to be cleaned. A relay with the same Config.Prefix publishes them. The log is the only place where they are: a message
// is lost if the slot is dropped or lost before it is published, or was not there when it was written. It is safe for
// concurrent use.
type Emitter struct{ prefix string }

// NewEmitter returns an Emitter. The prefix tells its messages from those of others in the database; see Config.Prefix.
func NewEmitter(prefix string) (*Emitter, error) {
	if !prefixName.MatchString(prefix) {
		return nil, &outbox.InvalidError{Field: "prefix", Problem: fmt.Sprintf("is %q, want 1 to 60 ASCII letters, digits and the signs _ . : / -", prefix)}
	}
	return &Emitter{prefix}, nil
}

// In returns a publisher that writes in the caller's transaction, all messages of a call in one round trip. A message
// without an ID gets a new one; the trace context of ctx travels along, and none of its baggage. Written twice is
// published twice, with the same ID. A message that cannot be written, such as one with a delay, is a
// [*producer.InvalidError]: then nothing of the call was written. After any other error the transaction must be rolled
// back.
func (e *Emitter) In(tx pgx.Tx) producer.Publisher {
	if tx == nil {
		return emission{}
	}
	return emission{e.prefix, func(ctx context.Context, messages [][]byte) error {
		_, err := tx.Exec(ctx, emitSQL, e.prefix, messages)
		return err
	}}
}

// InSQL is In for a transaction of database/sql, with any driver for PostgreSQL.
func (e *Emitter) InSQL(tx *sql.Tx) producer.Publisher {
	if tx == nil {
		return emission{}
	}
	return emission{e.prefix, func(ctx context.Context, messages [][]byte) error {
		_, err := tx.ExecContext(ctx, emitSQL, e.prefix, array(messages))
		return err
	}}
}

// WithTx returns a context that carries a transaction: Publish with this context joins it. It is pgoutbox.WithTx.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context { return txctx.With(ctx, tx) }

// WithSQLTx is WithTx for a transaction of database/sql. If a context carries one of each, Publish joins the one of pgx.
func WithSQLTx(ctx context.Context, tx *sql.Tx) context.Context { return txctx.With(ctx, tx) }

// Publish writes in the transaction that ctx carries, as In does. Without one it returns ErrNoTx, and writes nothing.
func (e *Emitter) Publish(ctx context.Context, messages ...producer.Message) error {
	if tx, found := txctx.From[pgx.Tx](ctx); found {
		return e.In(tx).Publish(ctx, messages...)
	}
	if tx, found := txctx.From[*sql.Tx](ctx); found {
		return e.InSQL(tx).Publish(ctx, messages...)
	}
	return ErrNoTx
}

// The aggregate keeps the order of the array, and makes one row of all results.
const emitSQL = `SELECT count(pg_logical_emit_message(true, $1::text, m)) FROM unnest($2::bytea[]) AS m`

// An emission writes in one transaction.
type emission struct {
	prefix string
	emit   func(ctx context.Context, messages [][]byte) error // nil: there is no transaction
}

// Publish implements [producer.Publisher]. See Emitter.In.
func (e emission) Publish(ctx context.Context, messages ...producer.Message) error {
	if e.emit == nil {
		return &outbox.InvalidError{Field: "tx", Problem: "is nil"}
	}
	packed := make([][]byte, len(messages))
	for i, m := range messages {
		ctx, created := telemetry.Create(ctx, m.Topic, m.Header)
		err := producer.Stamp(telemetry.KeepBaggage(ctx, nil), &m)
		created(m.ID)
		if err == nil {
			telemetry.Forget(m.Header, producer.HeaderResend)
			err = writable(m)
		}
		if err == nil {
			packed[i], err = pack(m)
		}
		if err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
	}
	for len(packed) > 0 {
		n := chunk(packed)
		if err := e.emit(ctx, packed[:n]); err != nil {
			return fmt.Errorf("write into the log: %w", err)
		}
		packed = packed[n:]
	}
	return nil
}

const (
	maxPayload = 256 << 20
	chunkSize  = 64 << 20 // far from PostgreSQL's limit of 1 GB for a value
)

// chunk is how many messages a statement takes.
func chunk(packed [][]byte) int {
	n, size := 1, len(packed[0])
	for n < len(packed) && size+len(packed[n]) <= chunkSize {
		size += len(packed[n])
		n++
	}
	return n
}

// writable refuses what could not be read again, or not become a dead row.
func writable(m producer.Message) error {
	switch {
	case m.Topic == "":
		return &producer.InvalidError{Field: "Message.Topic", Problem: "is empty"}
	case !m.NotBefore.IsZero():
		return &producer.InvalidError{Field: "Message.NotBefore", Problem: "is set, but the log holds nothing back: write delayed messages to an outbox"}
	case len(m.Payload) > maxPayload:
		return &producer.InvalidError{Field: "Message.Payload", Problem: fmt.Sprintf("has %d bytes, want at most %d", len(m.Payload), maxPayload)}
	}
	for _, text := range [...]struct{ field, value string }{{"Message.ID", m.ID}, {"Message.Topic", m.Topic}, {"Message.Key", m.Key}} {
		if !utf8.ValidString(text.value) || strings.ContainsRune(text.value, 0) {
			return &producer.InvalidError{Field: text.field, Problem: fmt.Sprintf("is not valid UTF-8 without zero bytes: %.600q", text.value)}
		}
	}
	for name, value := range m.Header {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return &producer.InvalidError{Field: fmt.Sprintf("header %q", name), Problem: fmt.Sprintf("is not valid UTF-8: %.600q", value)}
		}
	}
	return nil
}

// array is an array of bytea as PostgreSQL writes it: drivers differ there.
func array(values [][]byte) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"\\x`)
		b.WriteString(hex.EncodeToString(v))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}
