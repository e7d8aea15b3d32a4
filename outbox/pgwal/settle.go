package pgwal

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/outbox"
)

// A verdict is what became of a message, to be recorded. Unless it is Failed, the message leaves this process.
type verdict struct {
	State    outbox.State  `json:"state"`
	Reason   string        `json:"reason"` // Failed, Unknown, Dead: why
	Delay    time.Duration `json:"delay"`  // Unknown: when the table gives it back
	Number   int64         `json:"number"`
	Written  time.Time     `json:"written"` // a later row may have the same number
	Failures int           `json:"failures"`
	Unknowns int           `json:"unknowns"`
	Replays  int           `json:"replays"`
}

const (
	settleSize  = 500 // so many do not wait for the next beat
	settleMost  = 2000
	missedAfter = time.Second
)

// judge takes a verdict; one that comes later replaces it. Reasons are ASCII: the database may have another encoding
// than UTF-8.
func (s *session) judge(r *row, v verdict) {
	v.Number, v.Failures, v.Unknowns, v.Replays = r.number, r.failures, r.unknowns, r.replays
	v.Written = r.written()
	v.Reason = errtext.ASCII(v.Reason)
	if v.State != outbox.Failed { // it needs its content no more
		s.bytes -= len(r.message.Payload)
		r.message.Payload, r.message.Header = nil, nil
	}
	s.verdicts[r] = v
}

// settle records verdicts beside the loop if there are so many, one job at a time.
func (s *session) settle(working context.Context, atLeast, most int) {
	if s.settling || len(s.verdicts) < atLeast || time.Now().Before(s.settleAt) {
		return
	}
	batch := map[*row]verdict{}
	for r, v := range s.verdicts {
		if len(batch) == most {
			break
		}
		batch[r] = v
		delete(s.verdicts, r)
	}
	s.settling = true
	s.start(func() func() {
		done, err := s.r.write(working, slices.Collect(maps.Values(batch)))
		return func() {
			s.settling = false
			if err == nil {
				s.faults.Reset()
				s.recorded(working, batch, done)
				return
			}
			s.r.fault(working, "pgwal: results could not be recorded yet", err)
			s.fail(err)
			s.settleAt = time.Now().Add(pace.Jitter(s.faults.Next()))
			maps.Copy(batch, s.verdicts)
			s.verdicts = batch
		}
	})
}

// recorded forgets what was recorded. A row that the statement did not find may not be visible yet: with synchronous
// replication the log shows a commit early. It gets a second chance.
func (s *session) recorded(ctx context.Context, batch map[*row]verdict, done map[int64]bool) {
	again := map[*row]verdict{}
	for r, v := range batch {
		switch {
		case v.State == outbox.Failed:
		case !done[r.number] && r.logged && !r.missed:
			r.missed = true
			again[r] = v
		default:
			if v.State == outbox.Dead {
				s.r.telemetry.Died(ctx, r.message.Topic)
			}
			delete(s.rows, r.rowID) // the log need not show it again
		}
	}
	if len(again) == 0 {
		return
	}
	s.start(func() func() {
		pace.Sleep(ctx, missedAfter)
		return func() { maps.Copy(s.verdicts, again) }
	})
}

// Rows that are no longer pending, or were replayed or written again meanwhile, stay as they are. Attempts without an
// answer are recorded with the final verdict only, or when the row goes to the table, so an outage writes nothing.
const settleSQL = `
WITH given AS MATERIALIZED (
	SELECT * FROM jsonb_to_recordset($1::text::jsonb)
		AS g (number bigint, written timestamptz, state text, delay bigint, failures int, unknowns int, reason text,
			replays int)),
removed AS (
	DELETE FROM {table} o USING given g
	WHERE o.number = g.number AND g.state = 'removed' AND o.number = ANY(ARRAY(SELECT number FROM given))
		AND o.written_at = g.written AND o.published_at IS NULL AND o.dead_at IS NULL
		AND coalesce(o.replays, 0) = g.replays
	RETURNING o.number),
changed AS (
	UPDATE {table} o SET
		published_at = CASE WHEN g.state = 'published' THEN clock_timestamp() END,
		dead_at = CASE WHEN g.state = 'dead' THEN clock_timestamp() END,
		failures = CASE WHEN g.state = 'published' THEN o.failures ELSE nullif(g.failures, 0) END,
		unknowns = CASE WHEN g.state IN ('dead', 'unknown') THEN nullif(g.unknowns, 0) ELSE o.unknowns END,
		last_error = CASE WHEN g.state = 'published' THEN o.last_error ELSE g.reason END,
		due_at = CASE WHEN g.state = 'unknown' THEN clock_timestamp() + g.delay / 1000 * interval '1 microsecond'
			ELSE o.due_at END
	FROM given g
	WHERE o.number = g.number AND g.state <> 'removed' AND o.number = ANY(ARRAY(SELECT number FROM given))
		AND o.written_at = g.written AND o.published_at IS NULL AND o.dead_at IS NULL
		AND coalesce(o.replays, 0) = g.replays
	RETURNING o.number)
SELECT number FROM removed UNION ALL SELECT number FROM changed`

// write records verdicts, and returns the numbers of the rows that it found.
func (r *Relay) write(ctx context.Context, batch []verdict) (map[int64]bool, error) {
	given, err := json.Marshal(batch)
	if err != nil {
		return nil, err
	}
	var number int64
	done := make(map[int64]bool, len(batch))
	err = r.query(ctx, []any{&number}, func() { done[number] = true }, settleSQL, string(given))
	if err != nil {
		return nil, r.explain("record results", err)
	}
	return done, nil
}
