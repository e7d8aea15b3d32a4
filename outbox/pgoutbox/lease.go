package pgoutbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Leases are made one after the other, under a lock. Each statement sees what was committed before it began, so that the
// one that chooses rows knows all leases and results of the others. No statement that holds the lock sends rows: a client
// that stops reading would keep it.
const (
	// The commit need not be on disk: a lease that is lost with the server ends early, no more. For the other settings see
	// byIndexSQL.
	leaseLockSQL = `
SELECT set_config('lock_timeout', $1::text, true), set_config('synchronous_commit', 'off', true),
	set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	pg_advisory_xact_lock('{lease}'::regclass::oid::integer, -1)`

	takeOverSQL = `
WITH ended AS (DELETE FROM {lease} WHERE ends_at <= (SELECT clock_timestamp()) RETURNING numbers)
UPDATE {table} SET unknowns = coalesce(unknowns, 0) + 1
WHERE number = ANY(ARRAY(SELECT unnest(numbers) FROM ended)) AND published_at IS NULL AND dead_at IS NULL`

	leaseSQL = `
WITH held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease}),
batch AS MATERIALIZED (
	SELECT number, coalesce(due_at, written_at) AS due FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NULL
		AND coalesce(due_at, written_at) <= (SELECT clock_timestamp())
		AND number NOT IN (SELECT number FROM held)
	ORDER BY coalesce(due_at, written_at) LIMIT $3::bigint)
INSERT INTO {lease} (token, ends_at, numbers)
SELECT $1::text, clock_timestamp() + $2::bigint * interval '1 microsecond', array_agg(number ORDER BY due)
FROM batch HAVING count(*) > 0`

	suspectsSQL = `
WITH held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease}),
batch AS MATERIALIZED (
	SELECT number, coalesce(due_at, written_at) AS due FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NOT NULL
		AND coalesce(due_at, written_at) <= (SELECT clock_timestamp())
		AND number NOT IN (SELECT number FROM held)
	ORDER BY coalesce(due_at, written_at) LIMIT $3::bigint)
INSERT INTO {lease} (token, ends_at, numbers)
SELECT $1::text, clock_timestamp() + $2::bigint * interval '1 microsecond', array_agg(number ORDER BY due)
FROM batch HAVING count(*) > 0`

	// A plan must not depend on what the server knows about the table, which may be nothing: the server keeps plans, so that
	// one that was good for a new table would read all of a large one.
	byIndexSQL = `SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`

	// OFFSET 0 makes it look for each row by its number. (extract would calculate in numeric.)
	readSQL = `
SELECT o.*
FROM {lease} l CROSS JOIN LATERAL unnest(l.numbers) WITH ORDINALITY AS held (number, n)
	CROSS JOIN LATERAL (
		SELECT number, id, {topic}, coalesce({key}, ''), coalesce(header::text, ''), payload,
			coalesce(failures, 0), coalesce(unknowns, 0), coalesce(replays, 0),
			date_part('epoch', clock_timestamp() - coalesce(not_before, written_at))
		FROM {table} WHERE number = held.number OFFSET 0) AS o
WHERE l.token = $1::text ORDER BY held.n`
)

// Lease implements [outbox.Store]. It is one round trip.
func (o *Outbox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	lease := o.sql.lease
	if r.Suspects {
		lease = o.sql.suspects
	}
	var rows []outbox.Row
	read := reader{ordered: o.cfg.Ordered}
	err := o.pipeline(ctx, 6, func(scan func(...any) error) error {
		row, err := read.row(scan)
		rows = append(rows, row)
		return err
	},
		begin,
		statement{o.sql.leaseLock, []any{lockTimeoutOf(ctx)}},
		statement{query: o.sql.takeOver},
		statement{lease, []any{r.Token, r.Lease.Microseconds(), int64(r.Limit)}},
		commit,
		statement{query: byIndexSQL}, // and what follows are a transaction of their own
		statement{o.sql.read, []any{r.Token}},
	)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// lockTimeoutOf makes the server stop waiting for a lock when nobody waits for its answer any more.
func lockTimeoutOf(ctx context.Context) string {
	deadline, bounded := ctx.Deadline()
	if !bounded {
		return "0"
	}
	const most = math.MaxInt32 // of the setting: 25 days
	return strconv.FormatInt(min(max(1, time.Until(deadline).Milliseconds()), most), 10)
}

// A reader makes rows of what the server sends, one after the other in the same memory.
type reader struct {
	ordered  bool
	fields   []any // where scan puts what follows
	number   int64
	id, key  string
	topic    pgtype.DriverBytes // most rows have that of the row before
	header   string
	payload  []byte
	failures int
	unknowns int
	replays  int
	age      float64

	lastTopic string
}

func (r *reader) row(scan func(...any) error) (outbox.Row, error) {
	if r.fields == nil {
		r.fields = []any{&r.number, &r.id, &r.topic, &r.key, &r.header, &r.payload, &r.failures, &r.unknowns, &r.replays, &r.age}
	}
	if err := scan(r.fields...); err != nil {
		return outbox.Row{}, err
	}
	if string(r.topic) != r.lastTopic {
		r.lastTopic = string(r.topic)
	}
	row := outbox.Row{
		Number: r.number, Message: producer.Message{ID: r.id, Topic: r.lastTopic, Key: r.key, Payload: r.payload},
		Failures: r.failures, Unknowns: r.unknowns, Age: max(0, time.Duration(r.age*float64(time.Second))),
	}
	if r.ordered {
		row.Lane = r.key
	}
	if r.header == "" { // most rows have nothing there
		row.Message.Header = producer.Header{producer.HeaderID: r.id}
	} else if err := json.Unmarshal([]byte(r.header), &row.Message.Header); err != nil {
		// A header that cannot be read, which only somebody else can have written, must not hold up other rows.
		row.Problem = "header cannot be read: " + err.Error()
		return row, nil //nolint:nilerr // see above
	} else {
		if row.Message.Header == nil {
			row.Message.Header = producer.Header{}
		}
		set(row.Message.Header, producer.HeaderID, r.id)
	}
	if r.replays > 0 {
		markReplay(row.Message.Header, r.replays)
	}
	return row, nil
}

// markReplay makes a message a copy that brokers do not take for a duplicate.
func markReplay(h producer.Header, replays int) {
	generation, _ := strconv.Atoi(h.Get(producer.HeaderGeneration)) // 0: a first publication
	set(h, producer.HeaderPurpose, producer.PurposeReplay)
	set(h, producer.HeaderGeneration, strconv.Itoa(generation+replays))
}

// set replaces a header, in any spelling.
func set(h producer.Header, name, value string) {
	maps.DeleteFunc(h, func(k, _ string) bool { return strings.EqualFold(k, name) })
	h[name] = value
}

// Results that are not there any more, or not the token's, are passed over.
const settleSQL = `
WITH held AS (DELETE FROM {lease} WHERE token = $1::text RETURNING numbers),
mine AS MATERIALIZED (SELECT unnest(numbers) AS number FROM held),
removed AS (
	DELETE FROM {table} WHERE number = ANY(ARRAY(
		SELECT number FROM mine JOIN unnest($2::bigint[]) AS r (number) USING (number)))),
published AS (
	UPDATE {table} SET published_at = clock_timestamp() WHERE number = ANY(ARRAY(
		SELECT number FROM mine JOIN unnest($3::bigint[]) AS r (number) USING (number)))),
unsent AS (
	UPDATE {table} o SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
		dead_at = CASE WHEN r.dead THEN clock_timestamp() END,
		failures = nullif(coalesce(o.failures, 0) + r.failures, 0),
		unknowns = nullif(coalesce(o.unknowns, 0) + r.unknowns, 0),
		last_error = r.error
	FROM unnest($4::bigint[], $5::bigint[], $6::boolean[], $7::bigint[], $8::bigint[], $9::text[])
			AS r (number, delay, dead, failures, unknowns, error)
		JOIN mine USING (number)
	WHERE o.number = mine.number)
SELECT count(*) FROM held`

// settleAlikeSQL is for the usual batch, in which all rows had one outcome. The array is compared first: it is the whole
// lease, in its order.
const settleAlikeSQL = `
WITH held AS (DELETE FROM {lease} WHERE token = $1::text RETURNING numbers)
{outcome} WHERE number = ANY((
	SELECT CASE WHEN numbers = $2::bigint[] THEN numbers
		ELSE ARRAY(SELECT unnest(numbers) INTERSECT SELECT unnest($2::bigint[])) END
	FROM held)::bigint[])`

// Settle implements [outbox.Store]. It is one round trip.
func (o *Outbox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	s, err := sortResults(results)
	if err != nil {
		return err
	}
	settle := statement{o.sql.settle, []any{token, s.removed, s.published, s.unsent, s.delays, s.dead, s.failures, s.unknowns, s.errors}}
	switch len(results) {
	case len(s.published):
		settle = statement{o.sql.settlePublished, []any{token, s.published}}
	case len(s.removed):
		settle = statement{o.sql.settleRemoved, []any{token, s.removed}}
	}
	return o.pipeline(ctx, 3, nil, begin, statement{query: byIndexSQL}, settle, commit)
}

// sorted are results as the statement takes them.
type sorted struct {
	removed, published []int64
	unsent, delays     []int64
	failures, unknowns []int64
	dead               []bool
	errors             []string
}

// sortResults takes the first result of each row.
func sortResults(results []outbox.Result) (s sorted, err error) {
	seen := make(map[int64]bool, len(results))
	for _, r := range results {
		if seen[r.Number] {
			continue
		}
		seen[r.Number] = true
		switch r.State {
		case outbox.Published:
			s.published = append(s.published, r.Number)
		case outbox.Removed:
			s.removed = append(s.removed, r.Number)
		case outbox.Failed:
			s.add(r, 1, 0)
		case outbox.Unknown:
			s.add(r, 0, 1)
		case outbox.Dead:
			s.add(r, 1, 0)
		default:
			return sorted{}, &outbox.InvalidError{Field: "Result.State", Problem: fmt.Sprintf("is %q", r.State)}
		}
	}
	return s, nil
}

func (s *sorted) add(r outbox.Result, failures, unknowns int64) {
	s.unsent = append(s.unsent, r.Number)
	s.delays = append(s.delays, r.Delay.Microseconds())
	s.dead = append(s.dead, r.State == outbox.Dead)
	s.failures = append(s.failures, failures)
	s.unknowns = append(s.unknowns, unknowns)
	// An error text that PostgreSQL does not take would make the whole batch fail for ever.
	s.errors = append(s.errors, strings.ReplaceAll(strings.ToValidUTF8(r.Error, "\uFFFD"), "\x00", "\uFFFD"))
}
