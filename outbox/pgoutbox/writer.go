package pgoutbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/txctx"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// In returns a publisher that writes rows in the caller's transaction. All messages of a call go in one round trip;
// their payloads have at most 256 MB.
//
// A message without an ID gets a new one. The caller's message stays as it is, so set its ID (producer.NewID) if you
// need to know it. The trace context of ctx travels along, its baggage does not.
//
// While a row is kept, a message with the same ID and topic is not written again, so repeating an action does no harm.
// (For deliberate copies, purpose and generation count too.) If its key or payload differs, that is an
// [*outbox.ConflictError]. Headers are not compared, because the trace context changes with each repetition. Finding
// that out takes a second round trip.
//
// If that row is dead, the same transaction makes it pending again, because a repeated action wants it published.
// Nothing is counted then, and the new headers replace the old ones.
//
// A message that cannot be written is a [*dedupstore.InvalidError], and two messages of one call that contradict each
// other are a ConflictError. In both cases nothing of the call was written, and the transaction can go on. After any
// other error it must be rolled back.
func (o *Outbox) In(tx pgx.Tx) producer.Publisher {
	if isnil.Nil(tx) {
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

// Publish writes rows as In does, in the transaction of the pgstore inbox whose handler got ctx. Without one it returns
// ErrNoTx, and writes nothing.
func (o *Outbox) Publish(ctx context.Context, messages ...producer.Message) error {
	if tx, found := txctx.From[pgx.Tx](ctx); found {
		return o.In(tx).Publish(ctx, messages...)
	}
	if tx, found := txctx.From[*sql.Tx](ctx); found {
		return o.InSQL(tx).Publish(ctx, messages...)
	}
	return ErrNoTx
}

// JoinsInbox reports that Publish needs the transaction of an inbox.
func (*Outbox) JoinsInbox() bool { return true }

// A writer writes rows in one transaction.
type writer struct {
	outbox  *Outbox
	session session // nil: there is no transaction
}

// Publish implements [producer.Publisher]. See In.
func (w writer) Publish(ctx context.Context, messages ...producer.Message) error {
	if w.session == nil {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "tx", Problem: "is nil"}
	}
	records, err := w.outbox.records(ctx, messages)
	if err != nil || len(records) == 0 {
		return err
	}
	if err := w.outbox.check(ctx, w.session); err != nil {
		return fmt.Errorf("write outbox: %w", err)
	}
	if err := w.write(ctx, records); err != nil {
		return fmt.Errorf("write outbox: %w", w.outbox.explain(err))
	}
	return nil
}

const (
	// The condition is always true. It makes the commit wait for the disk. Otherwise a relay could publish a row, and a
	// server that crashes then would forget the rest of the transaction.
	insertSQL = `
INSERT INTO {table} (number, due_at, not_before, place, id, topic, copy, key, header, payload)
SELECT m.number, m.not_before, m.not_before, {place},
	m.id, m.topic, nullif(m.copy, ''), nullif(m.key, ''), nullif(m.header, '')::json, m.payload
FROM (
	SELECT u.*, CASE WHEN timestamptz 'epoch' + u.delayed * interval '1 microsecond' > clock_timestamp()
		THEN timestamptz 'epoch' + u.delayed * interval '1 microsecond' END AS not_before
	FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[])
		WITH ORDINALITY AS u (number, delayed, id, topic, copy, key, header, payload, n)
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
SELECT number, id, topic, coalesce(copy, ''), coalesce(key, ''), payload, dead_at IS NOT NULL
FROM {table} WHERE number = ANY($1::bigint[])`

	reviveSQL = `
UPDATE {table} o SET dead_at = NULL, failures = NULL, unknowns = NULL, header = nullif(m.header, '')::json,
	due_at = greatest(clock_timestamp(), timestamptz 'epoch' + nullif(m.delayed, 0) * interval '1 microsecond')
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS m (number, header, delayed)
WHERE o.number = m.number AND o.dead_at IS NOT NULL
RETURNING o.number`
)

// tries is how often a row is looked for: at another number if another message has the first, and again if the row
// comes and goes.
const tries = 20

// write writes records, each with its own row. It looks at rows that are there already. Until then a row may go, or
// stop being dead, so write tries again.
func (w writer) write(ctx context.Context, records []record) error {
	for range tries {
		now, later := eachNumberOnce(records)
		written, err := w.insert(ctx, now)
		if err != nil {
			return err
		}
		now = slices.DeleteFunc(now, func(r record) bool { return written[r.number] })
		if len(now) > 0 {
			if now, err = w.compare(ctx, now); err != nil {
				return err
			}
		}
		if records = append(now, later...); len(records) == 0 {
			return nil
		}
	}
	return errors.New("rows of the same messages come and go: repeat the transaction")
}

// eachNumberOnce returns the first record of each number, and the others, to which a statement would give no row. What
// comes after one that may get none yet waits, too, if they have one key.
func eachNumberOnce(records []record) (first, others []record) {
	seen, waits := make(map[int64]bool, len(records)), map[string]bool{}
	for _, r := range records {
		late := seen[r.number] || waits[r.Key]
		r.shared = r.shared || seen[r.number]
		seen[r.number] = true
		if r.Key != "" && (late || r.shared || r.tries > 0) {
			waits[r.Key] = true
		}
		if late {
			others = append(others, r)
		} else {
			first = append(first, r)
		}
	}
	return first, others
}

// insert returns the rows that were not there.
func (w writer) insert(ctx context.Context, records []record) (map[int64]bool, error) {
	n := len(records)
	numbers, times := make([]int64, n), make([]int64, n)
	messageIDs, topics, copies := make([]string, n), make([]string, n), make([]string, n)
	keys, headers, payloads := make([]string, n), make([]string, n), make([][]byte, n)
	for i, r := range records {
		numbers[i], times[i], messageIDs[i], topics[i] = r.number, r.Due, r.ID, r.Topic
		copies[i], keys[i], headers[i], payloads[i] = r.Copy, r.Key, r.Text, r.Payload
	}
	s := w.session
	return w.returned(ctx, statement{w.outbox.sql.insert, []any{s.numbers(numbers), s.numbers(times),
		s.texts(messageIDs), s.texts(topics), s.texts(copies), s.texts(keys), s.texts(headers), s.blobs(payloads),
	}}, w.locks(records)...)
}

// locks are what an ordered outbox takes before numbers are allocated, and keeps until the transaction ends.
func (w writer) locks(records []record) []statement {
	if !w.outbox.cfg.Ordered {
		return nil
	}
	var locks []int64
	for _, r := range records {
		if r.Key != "" {
			locks = append(locks, partition(r.Key))
		}
	}
	if len(locks) == 0 {
		return nil
	}
	slices.Sort(locks)
	return []statement{{w.outbox.sql.lock, []any{w.session.numbers(slices.Compact(locks))}}}
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

// compare looks at rows that are there already, and makes dead ones pending again. It returns the records that must be
// tried again: their row has gone, is no longer dead, or belongs to another message.
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
			return nil, &outbox.ConflictError{ID: r.ID, Topic: r.Topic}
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
		numbers, headers, times = append(numbers, r.number), append(headers, r.Text), append(times, r.Due)
	}
	s := w.session
	return w.returned(ctx,
		statement{w.outbox.sql.revive, []any{s.numbers(numbers), s.texts(headers), s.numbers(times)}})
}
