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

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Leases are made one after the other, under a lock. Each statement sees what was committed before it began, so that the
// one that chooses rows knows all leases and results of the others. No statement that holds the lock sends rows: a client
// that stops reading would keep it.
const (
	// The commit need not be on disk: a lease that is lost with the server ends early, no more. The plan must not depend
	// on what the server knows about the table, which may be nothing.
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

	readSQL = `
SELECT o.number, o.id, o.{topic}, coalesce(o.{key}, ''), coalesce(o.header::text, ''), o.payload,
	coalesce(o.failures, 0), coalesce(o.unknowns, 0), coalesce(o.replays, 0),
	extract(epoch FROM clock_timestamp() - coalesce(o.not_before, o.written_at))::float8
FROM {lease} l CROSS JOIN LATERAL unnest(l.numbers) WITH ORDINALITY AS held (number, n)
	JOIN {table} o ON o.number = held.number
WHERE l.token = $1::text ORDER BY held.n`
)

// Lease implements [outbox.Store]. It is one round trip.
func (o *Outbox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	lease := o.sql.lease
	if r.Suspects {
		lease = o.sql.suspects
	}
	var rows []outbox.Row
	err := o.pipeline(ctx, 5, func(scan func(...any) error) error {
		row, err := o.scanRow(scan)
		rows = append(rows, row)
		return err
	},
		begin,
		statement{o.sql.leaseLock, []any{lockTimeoutOf(ctx)}},
		statement{query: o.sql.takeOver},
		statement{lease, []any{r.Token, r.Lease.Microseconds(), int64(r.Limit)}},
		commit,
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

func (o *Outbox) scanRow(scan func(...any) error) (outbox.Row, error) {
	var row outbox.Row
	var header string
	var replays int
	var age float64
	m := &row.Message
	if err := scan(&row.Number, &m.ID, &m.Topic, &m.Key, &header, &m.Payload, &row.Failures, &row.Unknowns, &replays, &age); err != nil {
		return outbox.Row{}, err
	}
	row.Age = max(0, time.Duration(age*float64(time.Second)))
	if o.cfg.Ordered {
		row.Lane = m.Key
	}
	if header != "" { // most rows have nothing there
		// A header that cannot be read, which only somebody else can have written, must not hold up other rows.
		if err := json.Unmarshal([]byte(header), &m.Header); err != nil {
			row.Problem = "header cannot be read: " + err.Error()
			return row, nil //nolint:nilerr // see above
		}
	}
	if m.Header == nil {
		m.Header = producer.Header{}
	}
	set(m.Header, producer.HeaderID, m.ID)
	if replays > 0 {
		markReplay(m.Header, replays)
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

// Settle implements [outbox.Store]. It is one statement.
func (o *Outbox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	s, err := sortResults(results)
	if err != nil {
		return err
	}
	_, err = o.pool.Exec(ctx, o.sql.settle, token, s.removed, s.published, s.unsent, s.delays, s.dead, s.failures, s.unknowns, s.errors)
	return o.explain(err)
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
