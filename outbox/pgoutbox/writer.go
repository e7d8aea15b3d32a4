package pgoutbox

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// In returns a publisher that writes rows in the caller's transaction. All messages of a call go in one round trip.
//
// A message without an ID gets a new one; the trace context of ctx travels along, and of its baggage what
// Config.Baggage names. The caller's messages stay as they are, so give a message its ID (producer.NewID) to know it.
//
// A message whose ID, topic and, for deliberate copies, purpose and generation are in the outbox already is not written
// again, as long as the row is kept: repeating an action does no harm. If its key or payload differ, that is an
// [*outbox.ConflictError]. Headers are not compared, for trace context changes with each repetition. Finding that out
// takes a second round trip.
//
// If that row is dead, it becomes pending again, in the transaction too, with nothing counted and the headers of the
// new message: who repeats the action wants it published.
//
// A message that cannot be written is a [*dedupstore.InvalidError], and two messages of one call that contradict each
// other are a ConflictError: then nothing of the call was written, and the transaction can go on. After any other error
// it must be rolled back.
func (o *Outbox) In(tx pgx.Tx) producer.Publisher {
	if tx == nil {
		return writer{outbox: o}
	}
	return writer{o, pgxSession{tx}}
}

// InSQL is In for a transaction of database/sql, with any driver for PostgreSQL. Outboxes of other databases have the
// same method, so that code moves from one to the other unchanged.
func (o *Outbox) InSQL(tx *sql.Tx) producer.Publisher {
	if tx == nil {
		return writer{outbox: o}
	}
	return writer{o, sqlSession{tx}}
}

// WithTx returns a context that carries a transaction: Publish with this context joins it.
func WithTx(ctx context.Context, tx pgx.Tx) context.Context { return txctx.With(ctx, tx) }

// WithSQLTx is WithTx for a transaction of database/sql. If a context carries one of each, Publish joins the one of
// pgx.
func WithSQLTx(ctx context.Context, tx *sql.Tx) context.Context { return txctx.With(ctx, tx) }

// Publish writes rows in the transaction that ctx carries, as In does. Without one it returns ErrNoTx, and writes
// nothing.
func (o *Outbox) Publish(ctx context.Context, messages ...producer.Message) error {
	if tx, found := txctx.From[pgx.Tx](ctx); found {
		return o.In(tx).Publish(ctx, messages...)
	}
	if tx, found := txctx.From[*sql.Tx](ctx); found {
		return o.InSQL(tx).Publish(ctx, messages...)
	}
	return ErrNoTx
}

// A writer writes rows in one transaction.
type writer struct {
	outbox  *Outbox
	session session // nil: there is no transaction
}

// Publish implements [producer.Publisher]. See In.
func (w writer) Publish(ctx context.Context, messages ...producer.Message) error {
	if w.session == nil {
		return &outbox.InvalidError{Field: "tx", Problem: "is nil"}
	}
	records, err := w.outbox.records(ctx, messages)
	if err != nil || len(records) == 0 {
		return err
	}
	if err := w.outbox.check(ctx, w.session); err != nil {
		return fmt.Errorf("write outbox: %w", err)
	}
	for part := range chunks(records) {
		if err := w.write(ctx, part); err != nil {
			return fmt.Errorf("write outbox: %w", w.outbox.explain(err))
		}
	}
	return nil
}

// records turns the messages of a call into what is written, each once.
func (o *Outbox) records(ctx context.Context, messages []producer.Message) ([]record, error) {
	records := make([]record, 0, len(messages))
	index := make(map[name]int, len(messages))
	for i, m := range messages {
		r, err := o.newRecord(ctx, m)
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		if first, found := index[r.name()]; found {
			if !records[first].same(r.message.Key, r.message.Payload) {
				return nil, fmt.Errorf("messages[%d]: %w", i, &outbox.ConflictError{ID: r.message.ID, Topic: m.Topic})
			}
			continue
		}
		r.index = len(records)
		index[r.name()] = r.index
		records = append(records, r)
	}
	return records, nil
}

// A name is what names a row: messages with equal ones are one.
type name struct{ topic, id, copy string }

func (r record) name() name { return name{r.message.Topic, r.message.ID, r.copy} }

func (r record) same(key string, payload []byte) bool {
	return key == r.message.Key && bytes.Equal(payload, r.message.Payload)
}

// chunkSize keeps the arguments of a statement far from PostgreSQL's limit of 1 GB for a value.
const chunkSize = 64 << 20

// chunks splits records by the bytes of their payloads.
func chunks(records []record) func(yield func([]record) bool) {
	return func(yield func([]record) bool) {
		for len(records) > 0 {
			n, size := 1, len(records[0].message.Payload)
			for n < len(records) && size+len(records[n].message.Payload) <= chunkSize {
				size += len(records[n].message.Payload)
				n++
			}
			if !yield(records[:n]) {
				return
			}
			records = records[n:]
		}
	}
}

const (
	// The condition is always true. What it does: the commit waits for the disk, because a relay publishes what it can
	// see, and a server that crashed would have forgotten the rest of the transaction.
	insertSQL = `
INSERT INTO {table} (number, due_at, not_before, place, id, {topic}, {type_column}copy, {key}, header, payload)
SELECT m.number, m.not_before, m.not_before, {place},
	m.id, m.topic, {type_value}nullif(m.copy, ''), nullif(m.key, ''), nullif(m.header, '')::json, m.payload
FROM (
	SELECT u.*, CASE WHEN timestamptz 'epoch' + u.delayed * interval '1 microsecond' > clock_timestamp()
		THEN timestamptz 'epoch' + u.delayed * interval '1 microsecond' END AS not_before
	FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
		$9::bytea[])
		WITH ORDINALITY AS u (number, delayed, id, topic, type, copy, key, header, payload, n)
	ORDER BY u.n) AS m
WHERE (SELECT CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on',
	true) END)
	IS DISTINCT FROM 'off'
ON CONFLICT (number) DO NOTHING
RETURNING number`

	// The locks of an ordered outbox, in the order of the array, so that two calls never wait for each other.
	lockSQL = `SELECT pg_advisory_xact_lock('{lease}'::regclass::oid::integer, p::integer)
FROM unnest($1::bigint[]) AS p`

	findSQL = `
SELECT number, id, {topic}, coalesce(copy, ''), coalesce({key}, ''), payload, dead_at IS NOT NULL
FROM {table} WHERE number = ANY($1::bigint[])`

	reviveSQL = `
UPDATE {table} o SET dead_at = NULL, failures = NULL, unknowns = NULL, header = nullif(m.header, '')::json,
	due_at = greatest(clock_timestamp(), timestamptz 'epoch' + nullif(m.delayed, 0) * interval '1 microsecond')
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS m (number, header, delayed)
WHERE o.number = m.number AND o.dead_at IS NOT NULL
RETURNING o.number`
)

// tries is how often a row is looked for: at more than one number only where others have the first ones, and again
// where it comes and goes.
const tries = 20

// write writes records, each with a row of its own. What is there already is looked at: that may have gone, or changed
// from dead to something else, until then, and so it is tried again.
func (w writer) write(ctx context.Context, records []record) error {
	for range tries {
		written, err := w.insert(ctx, records)
		if err != nil {
			return err
		}
		records = slices.DeleteFunc(slices.Clone(records), func(r record) bool { return written[r.number] })
		if len(records) == 0 {
			return nil
		}
		if records, err = w.compare(ctx, records); err != nil || len(records) == 0 {
			return err
		}
	}
	return errors.New("rows of the same messages come and go: repeat the transaction")
}

// insert returns the rows that were not there.
func (w writer) insert(ctx context.Context, records []record) (map[int64]bool, error) {
	n := len(records)
	numbers, times := make([]int64, n), make([]int64, n)
	messageIDs, topics, kinds := make([]string, n), make([]string, n), make([]string, n)
	copies, keys, headers := make([]string, n), make([]string, n), make([]string, n)
	payloads := make([][]byte, n)
	for i, r := range records {
		m := r.message
		numbers[i], messageIDs[i], topics[i], kinds[i] = r.number, m.ID, m.Topic, r.kind
		copies[i], keys[i], headers[i], times[i] = r.copy, m.Key, r.header, r.notBefore
		if payloads[i] = m.Payload; m.Payload == nil {
			payloads[i] = []byte{} // nil would be NULL
		}
	}
	s := w.session
	return w.returned(ctx, statement{w.outbox.sql.insert, []any{
		s.numbers(numbers), s.numbers(times), s.texts(messageIDs), s.texts(topics), s.texts(kinds), s.texts(copies),
		s.texts(keys),
		s.texts(headers), s.blobs(payloads),
	}}, w.locks(records)...)
}

// locks are what an ordered outbox takes before numbers are allocated, and keeps until the transaction ends.
func (w writer) locks(records []record) []statement {
	if !w.outbox.cfg.Ordered {
		return nil
	}
	var partitions []int64
	for _, r := range records {
		if key := r.message.Key; key != "" {
			partitions = append(partitions, partition(key, w.outbox.cfg.Partitions))
		}
	}
	if len(partitions) == 0 {
		return nil
	}
	slices.Sort(partitions)
	return []statement{{w.outbox.sql.lock, []any{w.session.numbers(slices.Compact(partitions))}}}
}

// returned runs a statement that returns numbers of rows.
func (w writer) returned(ctx context.Context, s statement, before ...statement) (map[int64]bool, error) {
	rows := map[int64]bool{}
	err := w.session.each(ctx, s, func(scan func(...any) error) error {
		var number int64
		err := scan(&number)
		rows[number] = true
		return err
	}, before...)
	return rows, err
}

// compare looks at rows that are there already, and makes dead ones pending again. It returns the records that have no
// row yet: it is gone meanwhile, or dead no more, or another message has the number.
func (w writer) compare(ctx context.Context, records []record) (again []record, err error) {
	found, err := w.find(ctx, records)
	if err != nil {
		return nil, err
	}
	var dead []record
	for _, r := range records {
		row, there := found[r.number]
		switch {
		case !there:
			again = append(again, r)
		case row.name != r.name():
			r.tries++
			r.number = rowNumber(r, r.tries)
			again = append(again, r)
		case !r.same(row.key, row.payload):
			return nil, &outbox.ConflictError{ID: r.message.ID, Topic: r.message.Topic}
		case row.dead:
			dead = append(dead, r)
		}
	}
	revived, err := w.revive(ctx, dead)
	if err != nil {
		return nil, err
	}
	again = append(again, slices.DeleteFunc(dead, func(r record) bool { return revived[r.number] })...)
	slices.SortFunc(again, func(a, b record) int { return cmp.Compare(a.index, b.index) })
	return again, nil
}

// A rowFound is a row that is there already.
type rowFound struct {
	name    name
	key     string
	payload []byte
	dead    bool
}

func (w writer) find(ctx context.Context, records []record) (map[int64]rowFound, error) {
	numbers := make([]int64, len(records))
	for i, r := range records {
		numbers[i] = r.number
	}
	found := map[int64]rowFound{}
	err := w.session.each(ctx, statement{w.outbox.sql.find, []any{w.session.numbers(numbers)}},
		func(scan func(...any) error) error {
			var number int64
			var r rowFound
			err := scan(&number, &r.name.id, &r.name.topic, &r.name.copy, &r.key, &r.payload, &r.dead)
			found[number] = r
			return err
		})
	return found, err
}

// revive returns the rows that were dead and are pending now.
func (w writer) revive(ctx context.Context, dead []record) (map[int64]bool, error) {
	if len(dead) == 0 {
		return nil, nil
	}
	var numbers, times []int64
	var headers []string
	for _, r := range dead {
		numbers, headers, times = append(numbers, r.number), append(headers, r.header), append(times, r.notBefore)
	}
	s := w.session
	return w.returned(ctx, statement{w.outbox.sql.revive, []any{s.numbers(numbers), s.texts(headers),
		s.numbers(times)}})
}
