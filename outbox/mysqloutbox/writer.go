package mysqloutbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"slices"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// ErrNoTx says that the context of Publish carries no transaction. Use InSQL, or pass the context that the handler of
// an inbox got.
var ErrNoTx error = txctx.NoTx("mysqloutbox: the context carries no transaction: write with InSQL(tx), or pass the " +
	"context that the handler of a mysqlstore inbox got")

// InSQL returns a publisher that writes rows in the caller's transaction. Outboxes of other databases have the same
// method, so that code moves from one to the other unchanged.
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
// other error the transaction must be rolled back: a deadlock (error 1213) has done that already.
func (o *Outbox) InSQL(tx *sql.Tx) producer.Publisher { return writer{o, tx} }

// Publish writes rows as InSQL does, in the transaction of the mysqlstore inbox whose handler got ctx. Without one it
// returns ErrNoTx, and writes nothing.
func (o *Outbox) Publish(ctx context.Context, messages ...producer.Message) error {
	if tx, found := txctx.From[*sql.Tx](ctx); found {
		return o.InSQL(tx).Publish(ctx, messages...)
	}
	return ErrNoTx
}

// JoinsInbox reports that Publish needs the transaction of an inbox.
func (*Outbox) JoinsInbox() bool { return true }

// A writer writes rows in one transaction.
type writer struct {
	outbox *Outbox
	tx     *sql.Tx
}

// A record is a message as it is written.
type record struct {
	outgoing.Record
	name string // identifies the row
}

// Limits of the columns, in bytes.
const (
	maxTopic = 1024
	maxCopy  = 1024

	// statementBytes is how long a statement that writes several messages may be: any server takes that.
	statementBytes = 256 << 10

	// packetRest is what a packet has beside the message in it: the statement's head, and what the protocol adds.
	packetRest = 1 << 10

	// largePayload is the shortest that has a statement of its own.
	largePayload = 64 << 10
)

// Publish implements [producer.Publisher]. See InSQL.
func (w writer) Publish(ctx context.Context, messages ...producer.Message) error {
	if w.tx == nil {
		return &dedupstore.InvalidError{Package: "mysqloutbox", Field: "tx", Problem: "is nil"}
	}
	var records []record
	for i, m := range messages {
		made, err := outgoing.NewRecord(ctx, m)
		if err == nil && (len(made.Topic) > maxTopic || len(made.Copy) > maxCopy) {
			err = &dedupstore.InvalidError{Package: "mysqloutbox", Field: "Message.Topic",
				Problem: fmt.Sprintf("or the purpose of a copy has more than %d bytes", maxTopic)}
		}
		if err != nil {
			return fmt.Errorf("messages[%d]: %w", i, err)
		}
		records = append(records, record{made, nameOf(made)})
	}
	if len(records) == 0 {
		return nil
	}
	if err := w.outbox.check(ctx, w.tx); err != nil {
		return fmt.Errorf("write outbox: %w", err)
	}
	if err := w.write(ctx, records); err != nil {
		return fmt.Errorf("write outbox: %w", w.outbox.explain(err))
	}
	return nil
}

// nameOf is where the row of a message lies: a hash, behind the time of its ID if that begins with one. Rows that are
// written, leased and removed together then lie together.
func nameOf(r outgoing.Record) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", r.Topic, r.ID, r.Copy))
	name := append(ids.Time(r.ID), sum[:]...)
	return string(name[:len(sum)])
}

// write writes records by as few statements as fit.
func (w writer) write(ctx context.Context, records []record) error {
	statements, err := w.inserts(records)
	if err != nil {
		return err
	}
	if err := w.lock(ctx, records); err != nil {
		return err
	}
	written := 0
	for _, insert := range statements {
		n, err := insert.run(ctx, w.tx)
		if err != nil {
			return err
		}
		written += n
	}
	if written == len(records) {
		return nil
	}
	return w.compare(ctx, records)
}

// An insert is a statement. A large payload is its argument, so that the driver sends it as it is.
type insert struct {
	statement string
	payload   []byte // nil: there is none
}

func (i insert) run(ctx context.Context, tx *sql.Tx) (written int, err error) {
	if i.payload == nil {
		return sqlstore.Change(ctx, tx, i.statement)
	}
	return sqlstore.ChangeLarge(ctx, tx, i.statement, i.payload)
}

// inserts are the statements that write records, in their order. Each fits into a packet.
func (w writer) inserts(records []record) (all []insert, err error) {
	head := w.outbox.in("INSERT IGNORE INTO `{table}` (name, at, order_hash, written_at, not_before, id, topic, " +
		"copy, message_key, header, payload) VALUES ")
	packet := int(w.outbox.packet.Load())
	b := []byte(head)
	flush := func(payload []byte) {
		if len(b) > len(head) {
			all = append(all, insert{string(b), payload})
			b = []byte(head)
		}
	}
	for i, r := range records {
		var payload any = r.Payload
		apart := 0 // bytes of payload that are not in the statement
		if len(r.Payload) >= largePayload {
			payload, apart = sqlstore.Expr("?"), len(r.Payload)
		}
		row := sqlstore.AppendRow(nil, r.name, dueOf(r), w.outbox.orderOf(r.Key), sqlstore.MySQLNow, dueOf(r),
			r.ID, r.Topic, r.Copy, r.Key, r.Text, payload)
		if len(row)+apart+packetRest > packet {
			return nil, fmt.Errorf("messages[%d], %q: %w", i, r.ID, &dedupstore.InvalidError{
				Package: "mysqloutbox", Field: "Message.Payload", Problem: fmt.Sprintf("has %d bytes, and with key "+
					"and header too many for the server's max_allowed_packet, which is %d: raise "+
					"it", len(r.Payload), packet)})
		}
		if apart > 0 || len(b)+1+len(row) > min(statementBytes, packet-packetRest) {
			flush(nil)
		}
		if len(b) > len(head) {
			b = append(b, ',')
		}
		b = append(b, row...)
		if apart > 0 {
			flush(r.Payload)
		}
	}
	flush(nil)
	return all, nil
}

// orderOf names the rows of a key that keep one order; nil: none.
func (o *Outbox) orderOf(key string) []byte {
	if !o.cfg.Ordered || key == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(key)) // as orderSQL
	return sum[:16]
}

// partitions is how many locks the keys of an ordered outbox share, so that a transaction never takes more.
const partitions = 64

// lock takes the partitions of the records' keys, until the transaction ends. Numbers are allocated after that: so when
// a row is visible, all earlier rows of its key are visible.
func (w writer) lock(ctx context.Context, records []record) error {
	var parts []any
	for _, r := range records {
		if order := w.outbox.orderOf(r.Key); order != nil {
			parts = append(parts, 1+int(order[0]%partitions))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	_, err := numbers(ctx, w.tx, w.outbox.sql("SELECT number FROM `{table}_settings` FORCE INDEX (PRIMARY) "+
		"WHERE number IN %s ORDER BY number FOR UPDATE", list(parts...)))
	return err
}

// compareRows is how many rows one statement looks at. Any server takes as many names.
const compareRows = 1000

// compare looks at the rows of records when some were there before, and makes dead ones pending again. The insert has
// locked them already, so a read with a lock waits for nobody. It shows them as they are, also to a transaction that
// sees the rest of the database as it was when it began.
func (w writer) compare(ctx context.Context, records []record) error {
	for part := range slices.Chunk(records, compareRows) {
		found, err := w.find(ctx, part)
		if err != nil {
			return err
		}
		for _, r := range part {
			switch there, ok := found[r.name]; {
			case !ok:
				return fmt.Errorf("message %q was not written", r.ID)
			case string(there.key) != r.Key || !bytes.Equal(there.payload, r.Payload):
				return &outbox.ConflictError{ID: r.ID, Topic: r.Topic}
			case there.state == dead:
				if err := w.revive(ctx, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// A rowFound is a row that is there already.
type rowFound struct {
	key, payload []byte
	state        int
}

func (w writer) find(ctx context.Context, records []record) (map[string]rowFound, error) {
	names := make([]any, len(records))
	for i, r := range records {
		names[i] = r.name
	}
	found := map[string]rowFound{}
	query := w.outbox.in("SELECT name, message_key, payload, state FROM `{table}` FORCE INDEX (PRIMARY) "+
		"WHERE name IN ") +
		list(names...) + " LOCK IN SHARE MODE"
	err := sqlstore.EachRow(ctx, w.tx, query, func(rows *sql.Rows) error {
		var name string
		var r rowFound
		err := rows.Scan(&name, &r.key, &r.payload, &r.state)
		found[name] = r
		return err
	})
	return found, err
}

func (w writer) revive(ctx context.Context, r record) error {
	_, err := sqlstore.Change(ctx, w.tx, w.outbox.sql("UPDATE `{table}` SET state = %d, failures = 0, unknowns = 0, "+
		"order_hash = %s, header = %s, at = %s WHERE name = %s AND state = %d",
		pending, list(w.outbox.orderOf(r.Key)), list(r.Text), dueOf(r), list(r.name), dead))
	return err
}

// dueOf is when a message is due, not earlier than now.
func dueOf(r record) sqlstore.Expr {
	return sqlstore.Expr(fmt.Sprintf("GREATEST(%d, %s)", r.Due, sqlstore.MySQLNow))
}
