package pgwal

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/outbox"
)

// A verdict is what became of a message, to be recorded. Of all but Failed ones the message leaves this process.
type verdict struct {
	row    *row
	state  outbox.State
	reason string        // Failed, Unknown, Dead: why
	delay  time.Duration // Unknown: when the table gives it back

	failures, unknowns int // of the row, which may have more when this is recorded
}

const (
	settleEvery = 50 * time.Millisecond // many rows in one transaction of the database, however slowly they come
	settleSize  = 500
	settleMost  = 2000
	missedAfter = time.Second
)

// judge takes a verdict.
func (s *session) judge(v verdict) {
	v.failures, v.unknowns = v.row.failures, v.row.unknowns
	if v.state != outbox.Failed { // it needs its content no more
		s.bytes -= len(v.row.message.Payload)
		v.row.message.Payload, v.row.message.Header = nil, nil
	}
	if len(s.verdicts) == 0 {
		s.settleAt = time.Now().Add(settleEvery)
	}
	s.verdicts = append(s.verdicts, v)
}

// settle records verdicts beside the loop, one job at a time.
func (s *session) settle(working context.Context, now time.Time) {
	if s.settling || len(s.verdicts) == 0 || len(s.verdicts) < settleSize && now.Before(s.settleAt) {
		return
	}
	n := min(len(s.verdicts), settleMost)
	batch := s.verdicts[:n:n]
	s.verdicts = s.verdicts[n:]
	s.settling, s.settleAt = true, now
	s.record(working, batch)
}

// record records verdicts in a job, and tries again until ctx ends or the server stops.
func (s *session) record(ctx context.Context, batch []verdict) {
	if len(batch) == 0 {
		return
	}
	s.start(func() func() {
		done, err := s.r.recordUntilDone(ctx, batch)
		return func() {
			s.settling = false
			if err != nil {
				s.fail(err)
				s.verdicts = append(batch, s.verdicts...)
				return
			}
			s.recorded(ctx, batch, done)
		}
	})
}

// recorded forgets what was recorded. A row that the statement did not find may be one that nobody sees yet: with
// synchronous replication the log shows a commit before others do. It gets a second chance.
func (s *session) recorded(ctx context.Context, batch []verdict, done map[int64]bool) {
	var again []verdict
	for _, v := range batch {
		r := v.row
		switch {
		case v.state == outbox.Failed:
		case !done[r.number] && r.txn != nil && !r.missed:
			r.missed = true
			again = append(again, v)
		default:
			if v.state == outbox.Dead {
				s.r.telemetry.Died(ctx, r.message.Topic)
			}
			s.forget(r)
		}
	}
	if again == nil {
		return
	}
	s.start(func() func() {
		pace.Sleep(ctx, missedAfter)
		return func() {
			for _, v := range again {
				s.judge(v)
			}
		}
	})
}

// recordUntilDone records verdicts, and tries again until ctx ends or the server stops.
func (r *Relay) recordUntilDone(ctx context.Context, batch []verdict) (done map[int64]bool, err error) {
	faults := pace.Pace{Shortest: shortestFault, Longest: longestFault}
	for {
		done, err = r.write(ctx, batch)
		if err == nil {
			return done, nil
		}
		r.log.WarnContext(ctx, "pgwal: results could not be recorded yet", "messages", len(batch), "error", err)
		if hasCode(err, codeCannotConnectNow) || !pace.Sleep(ctx, pace.Jitter(faults.Next())) {
			return nil, err
		}
	}
}

// Rows that are not pending any more, or were replayed meanwhile, stay as they are. Attempts without an answer are
// recorded only with the last word, or when the row becomes the table's: an outage writes nothing.
const settleSQL = `
WITH given AS (
	SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::integer[], $5::integer[], $6::text[],
		$7::integer[])
		AS g (number, state, delay, failures, unknowns, reason, replays)),
removed AS (
	DELETE FROM {table} o USING given g
	WHERE o.number = g.number AND g.state = 'removed' AND o.number = ANY((SELECT $1::bigint[])::bigint[])
		AND o.published_at IS NULL AND o.dead_at IS NULL AND coalesce(o.replays, 0) = g.replays
	RETURNING o.number),
changed AS (
	UPDATE {table} o SET
		published_at = CASE WHEN g.state = 'published' THEN clock_timestamp() END,
		dead_at = CASE WHEN g.state = 'dead' THEN clock_timestamp() END,
		failures = CASE WHEN g.state = 'published' THEN o.failures ELSE nullif(g.failures, 0) END,
		unknowns = CASE WHEN g.state IN ('dead', 'unknown') THEN nullif(g.unknowns, 0) ELSE o.unknowns END,
		last_error = CASE WHEN g.state = 'published' THEN o.last_error ELSE g.reason END,
		due_at = CASE WHEN g.state = 'unknown' THEN clock_timestamp() + g.delay * interval '1 microsecond'
			ELSE o.due_at END
	FROM given g
	WHERE o.number = g.number AND g.state <> 'removed' AND o.number = ANY((SELECT $1::bigint[])::bigint[])
		AND o.published_at IS NULL AND o.dead_at IS NULL AND coalesce(o.replays, 0) = g.replays
	RETURNING o.number)
SELECT ARRAY(SELECT number FROM removed UNION ALL SELECT number FROM changed)`

// write records verdicts, and returns the numbers of the rows that it found. Reasons are ASCII: the database may have
// another encoding than UTF-8.
func (r *Relay) write(ctx context.Context, batch []verdict) (done map[int64]bool, err error) {
	last := make(map[int64]int, len(batch)) // the statement must not change a row twice
	for i, v := range batch {
		last[v.row.number] = i
	}
	var numbers, delays []int64
	var states, reasons []string
	var failures, unknowns, replays []int32
	for i, v := range batch {
		if last[v.row.number] != i {
			continue
		}
		numbers, delays = append(numbers, v.row.number), append(delays, v.delay.Microseconds())
		states, reasons = append(states, string(v.state)), append(reasons, errtext.ASCII(v.reason))
		failures, unknowns = append(failures, int32(v.failures)), append(unknowns, int32(v.unknowns))
		replays = append(replays, int32(v.row.replays))
	}
	var found []int64
	err = r.query(ctx, func(rows pgx.Rows) error { return rows.Scan(&found) },
		r.sql.settle, numbers, states, delays, failures, unknowns, reasons, replays)
	if err != nil {
		return nil, r.explain("record results", err)
	}
	done = make(map[int64]bool, len(found))
	for _, number := range found {
		done[number] = true
	}
	return done, nil
}
