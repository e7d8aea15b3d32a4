package pgoutbox

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/outbox"
)

// Leases are made one after another, under a lock. A statement sees what was committed before it began, so the one that
// chooses rows knows the leases and results of all others. No statement that holds the lock sends rows, because a
// client that stops reading would keep it.
const (
	// The commit need not be on disk: if the server loses a lease, it just ends early. For the other settings see
	// byIndexSQL.
	leaseLockSQL = `
SELECT set_config('lock_timeout', $1::text, true), set_config('synchronous_commit', 'off', true),
	set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	pg_advisory_xact_lock('{lease}'::regclass::oid::integer, -1)`

	// After a crash of many relays there may be more rows than can be written within a lease. The rest is held until
	// the next one. A relay that had an error asks for fewer rows, and so takes over fewer.
	takeOverSQL = `
WITH ended AS (
	DELETE FROM {lease} WHERE token = ANY(ARRAY(
		SELECT token FROM (
			SELECT token, sum(cardinality(numbers)) OVER (ORDER BY ends_at, token) - cardinality(numbers) AS before
			FROM {lease} WHERE ends_at <= (SELECT clock_timestamp())) AS e
		WHERE before < 20 * $1::bigint))
	RETURNING numbers)
UPDATE {table} SET unknowns = coalesce(unknowns, 0) + 1
WHERE number = ANY(ARRAY(SELECT unnest(numbers) FROM ended)) AND published_at IS NULL AND dead_at IS NULL`

	// The rows come out of the index in the order in which they are due, and stay in it.
	leaseSQL = `
WITH held AS MATERIALIZED (SELECT unnest(numbers) AS number FROM {lease})
INSERT INTO {lease} (token, ends_at, numbers)
SELECT $1::text, clock_timestamp() + $2::bigint * interval '1 microsecond', array_agg(number)
FROM (
	SELECT number FROM {table}
	WHERE published_at IS NULL AND dead_at IS NULL AND unknowns IS NULL AND place IS NULL
		AND coalesce(due_at, written_at) <= (SELECT clock_timestamp())
		AND number NOT IN (SELECT number FROM held)
	ORDER BY coalesce(due_at, written_at) LIMIT $3::bigint) AS batch
HAVING count(*) > 0`

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

	// The plan must not depend on the table's statistics. The server keeps plans, and a good plan for a new table would
	// read all of a large one. Values may come as text, which pgx reads in one style.
	byIndexSQL = `
SELECT clock_timestamp(), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
	set_config('datestyle', 'ISO', true), set_config('bytea_output', 'hex', true)`

	// OFFSET 0 makes the server look for each row by its number, in the order of the lease. The columns are read as
	// they are: a NULL costs the server nothing, an expression made of it does.
	readSQL = `
SELECT o.*
FROM {lease} l CROSS JOIN LATERAL unnest(l.numbers) WITH ORDINALITY AS held (number, n)
	CROSS JOIN LATERAL (
		SELECT number, id, topic, key, header, payload, failures, unknowns, replays, coalesce(not_before, written_at)
		FROM {table} WHERE number = held.number OFFSET 0) AS o
WHERE l.token = $1::text ORDER BY held.n`
)

// Lease implements [outbox.Store]. It is one round trip.
func (o *Outbox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	lease := o.sql.lease
	if r.Suspects {
		lease = o.sql.suspects
	}
	read := reader{ordered: o.cfg.Ordered}
	err := o.pipeline(ctx, 5, []eachRowFunc{read.clock, read.row},
		begin,
		statement{o.sql.leaseLock, []any{lockTimeoutOf(ctx)}},
		statement{o.sql.takeOver, []any{int64(r.Limit)}},
		statement{lease, []any{r.Token, r.Lease.Microseconds(), int64(r.Limit)}},
		commit,
		statement{query: byIndexSQL}, // and what follows are a transaction of their own
		statement{o.sql.read, []any{r.Token}},
	)
	if err != nil {
		return nil, err
	}
	return read.rows, nil
}

// lockTimeoutOf makes the server stop waiting for a lock when its client has stopped waiting.
func lockTimeoutOf(ctx context.Context) string {
	deadline, bounded := ctx.Deadline()
	if !bounded {
		return "0"
	}
	const most = math.MaxInt32 // of the setting: 25 days
	return strconv.FormatInt(min(max(1, time.Until(deadline).Milliseconds()), most), 10)
}

// A reader makes rows of what the server sends.
type reader struct {
	ordered bool
	now     time.Time // by the server's clock
	rows    []outbox.Row

	// what a row is scanned into
	key                         pgtype.Text
	header                      pgtype.DriverBytes // most rows have none
	failures, unknowns, replays pgtype.Int4
	due                         time.Time
}

func (r *reader) clock(scan func(...any) error) error { return scan(&r.now, nil, nil, nil, nil) }

func (r *reader) row(scan func(...any) error) error {
	r.rows = append(r.rows, outbox.Row{})
	row := &r.rows[len(r.rows)-1]
	m := &row.Message
	err := scan(&row.Number, &m.ID, &m.Topic, &r.key, &r.header, &m.Payload, &r.failures, &r.unknowns, &r.replays,
		&r.due)
	if err != nil {
		return err
	}
	m.Key, row.Failures, row.Unknowns = r.key.String, int(r.failures.Int32), int(r.unknowns.Int32)
	row.Age = max(0, r.now.Sub(r.due))
	if r.ordered {
		row.OrderKey = m.Key
	}
	m.Header, err = outgoing.Header(m.ID, r.header, int(r.replays.Int32))
	if err != nil { // it must not hold up other rows
		row.Problem = err.Error()
	}
	return nil
}

// Rows that are gone, or no longer the token's, are passed over.
const settleSQL = `
WITH held AS (DELETE FROM {lease} WHERE token = $1::text RETURNING numbers),
mine AS MATERIALIZED (SELECT unnest(numbers) AS number FROM held),
removed AS (
	DELETE FROM {table} WHERE number = ANY(ARRAY(
		SELECT number FROM mine JOIN unnest($2::bigint[]) AS r (number) USING (number)))),
published AS (
	UPDATE {table} SET published_at = clock_timestamp(), dead_at = NULL WHERE number = ANY(ARRAY(
		SELECT number FROM mine JOIN unnest($3::bigint[]) AS r (number) USING (number)))),
unsent AS (
	UPDATE {table} o SET due_at = clock_timestamp() + r.delay * interval '1 microsecond',
		dead_at = CASE WHEN r.state = 'dead' THEN clock_timestamp() END,
		failures = nullif(coalesce(o.failures, 0) + (r.state <> 'unknown')::integer, 0),
		unknowns = nullif(coalesce(o.unknowns, 0) + (r.state = 'unknown')::integer, 0),
		last_error = r.error
	FROM unnest($4::bigint[], $5::bigint[], $6::text[], $7::text[]) AS r (number, delay, state, error)
		JOIN mine USING (number)
	WHERE o.number = mine.number)
SELECT count(*) FROM held`

// Settle implements [outbox.Store]. It is one round trip.
func (o *Outbox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	s, err := sortResults(results)
	if err != nil {
		return err
	}
	return o.pipeline(ctx, 4, nil, begin, statement{query: byIndexSQL}, statement{o.sql.settle, []any{token, s.removed,
		s.published, s.unsent, s.delays, s.states, s.errors}}, commit)
}

// sorted are results as the statement takes them.
type sorted struct {
	removed, published, unsent, delays []int64
	states, errors                     []string
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
		case outbox.Failed, outbox.Dead, outbox.Unknown:
			s.unsent = append(s.unsent, r.Number)
			s.delays = append(s.delays, r.Delay.Microseconds())
			s.states = append(s.states, string(r.State))
			// A text that the database's encoding cannot store would fail the whole batch for ever.
			s.errors = append(s.errors, strings.ReplaceAll(errtext.ASCII(r.Error), "\x00", "?"))
		default:
			return sorted{}, &dedupstore.InvalidError{Package: "pgoutbox", Field: "Result.State",
				Problem: fmt.Sprintf("is %q", r.State)}
		}
	}
	return s, nil
}
