package pgwal

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/outbox"
)

// A verdict is what became of a message, to be recorded.
type verdict struct {
	row    *row
	state  outbox.State // Published, Removed, Dead, or Failed and Unknown, which are not the last word
	reason string       // Failed, Unknown, Dead: why

	failures, unknowns int  // of the row, which may have changed when this is recorded
	adopted            bool // so, too
}

func (v verdict) acked() bool { return v.state == outbox.Published || v.state == outbox.Removed }

const (
	settleEvery = 50 * time.Millisecond // many rows in one transaction of the database, however slowly they come
	settleSize  = 500
	settleMost  = 2000
)

// judge takes a verdict. What needs no record is settled at once.
func (s *session) judge(v verdict) {
	if s.r.cfg.messages() && v.state != outbox.Dead {
		if v.acked() {
			s.settled(v)
		}
		return
	}
	v.failures, v.unknowns, v.adopted = v.row.failures, v.row.unknowns, v.row.adopted
	if len(s.verdicts) == 0 {
		s.settleAt = time.Now().Add(settleEvery)
	}
	s.verdicts = append(s.verdicts, v)
}

// settled forgets a message: its record is safe, or it needs none.
func (s *session) settled(v verdict) {
	r := v.row
	switch v.state {
	case outbox.Failed:
		return
	case outbox.Unknown:
		s.leaveLog(r)
		if _, there := s.numbers[r.number]; there {
			s.numbers[r.number] = true
		}
		return
	case outbox.Dead:
		s.r.telemetry.Died(context.Background(), r.message.Topic)
	}
	s.bytes -= r.size
	r.size = 0
	s.unsettled--
	if r.number != 0 {
		delete(s.numbers, r.number)
	}
	s.leaveLog(r)
}

// leaveLog settles a message in the log: it need not be shown again.
func (s *session) leaveLog(r *row) {
	if r.txn != nil {
		s.settledTxn(s.progress.done(r.txn))
		r.txn = nil
	}
}

// settle records verdicts beside the loop, one job at a time.
func (s *session) settle(working context.Context, now time.Time) {
	full := len(s.verdicts) >= settleSize && !s.held
	if s.settling || len(s.verdicts) == 0 || !full && now.Before(s.settleAt) {
		return
	}
	n := min(len(s.verdicts), settleMost)
	batch := s.verdicts[:n:n]
	s.verdicts, s.spare = append(s.spare, s.verdicts[n:]...), nil
	s.settling, s.held, s.settleAt = true, false, now
	s.start(func() func() {
		unseen, err := s.r.recordUntilDone(working, batch)
		return func() {
			s.settling = false
			if err != nil {
				s.leave = s.leave || hasCode(err, codeCannotConnectNow)
				s.verdicts = append(s.unparked(batch), s.verdicts...)
				return
			}
			s.recorded(batch, unseen)
			clear(batch)
			s.spare = batch[:0]
		}
	})
}

// recorded settles what was recorded, and keeps what could not be yet because nobody sees the rows.
func (s *session) recorded(batch []verdict, unseen map[*row]bool) {
	var again []verdict
	for _, v := range batch {
		switch {
		case !unseen[v.row]:
			s.settled(v)
		case v.state == outbox.Unknown:
			v.row.adopted = false // until the next attempt
		case v.state != outbox.Failed:
			again = append(again, v)
		}
	}
	if len(again) > 0 {
		s.held, s.settleAt = true, time.Now().Add(settleEvery)
		s.verdicts = append(s.verdicts, again...)
	}
}

// unparked settles the messages of a batch that are dead rows already, and returns the others.
func (s *session) unparked(batch []verdict) (rest []verdict) {
	for _, v := range batch {
		if v.row.parked {
			s.settled(v)
		} else {
			rest = append(rest, v)
		}
	}
	return rest
}

// settleLast records what is left when the session ends, if that can be done within StoreTimeout.
func (s *session) settleLast(ctx context.Context) {
	if len(s.verdicts) == 0 {
		return
	}
	batch := s.verdicts
	s.start(func() func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.r.cfg.StoreTimeout)
		defer cancel()
		unseen, err := s.r.record(last, batch)
		return func() {
			if err == nil {
				s.verdicts = nil
				s.recorded(batch, unseen)
				return
			}
			s.verdicts = s.unparked(batch)
			s.r.log.WarnContext(ctx, "pgwal: results could not be recorded, messages may be published again", "messages", len(s.verdicts), "error", err)
		}
	})
}

// recordUntilDone records verdicts, and tries again until ctx ends or the server stops.
func (r *Relay) recordUntilDone(ctx context.Context, batch []verdict) (unseen map[*row]bool, err error) {
	faults := pace.Pace{Shortest: shortestFault, Longest: longestFault}
	for {
		unseen, err = r.record(ctx, batch)
		if err == nil {
			return unseen, nil
		}
		r.log.WarnContext(ctx, "pgwal: results could not be recorded yet", "messages", len(batch), "error", err)
		if hasCode(err, codeCannotConnectNow) || !pace.Sleep(ctx, pace.Jitter(faults.Next())) {
			return nil, err
		}
	}
}

// record records verdicts, and returns the rows that nobody sees yet, which are to be recorded later.
func (r *Relay) record(ctx context.Context, batch []verdict) (unseen map[*row]bool, err error) {
	unseen, err = r.recordText(ctx, batch)
	if hasCode(err, codeNoSuchText) || hasCode(err, codeNoTranslation) { // the database has another encoding than UTF-8
		for i := range batch {
			batch[i].reason = errtext.ASCII(batch[i].reason)
		}
		unseen, err = r.recordText(ctx, batch)
	}
	return unseen, err
}

func (r *Relay) recordText(ctx context.Context, batch []verdict) (unseen map[*row]bool, err error) {
	if r.cfg.messages() {
		return nil, r.park(ctx, batch)
	}
	w := sortVerdicts(batch)
	var text string
	var done []int64
	err = r.query(ctx, func(rows pgx.Rows) error { return rows.Scan(&text, &done) },
		r.sql.settle, w.removed, w.published, w.unsent, w.dead, w.adopted, w.failures, w.unknowns, w.reasons, w.copies, w.replays)
	if err != nil {
		return nil, r.explain("record results", err)
	}
	seen, err := parseSnapshot(text)
	if err != nil {
		return nil, err
	}
	if len(done) == len(w.rows) { // as nearly always
		return nil, nil
	}
	for _, number := range done {
		delete(w.rows, number)
	}
	for _, missed := range w.rows {
		if !seen.sees(missed.xid) {
			if unseen == nil {
				unseen = map[*row]bool{}
			}
			unseen[missed] = true
		}
	}
	return unseen, nil
}

// Rows that are not pending any more, or were replayed meanwhile, stay as they are. Unknown attempts are recorded only with
// the last word, or when the row becomes the table's by a due time: an outage writes nothing.
const settleSQL = `
WITH removed AS (
	DELETE FROM {table} WHERE number = ANY((SELECT $1::bigint[])::bigint[]) AND published_at IS NULL AND dead_at IS NULL
		AND coalesce(replays, 0) = coalesce(($10::integer[])[array_position($9::bigint[], number)], 0)
	RETURNING number),
published AS (
	UPDATE {table} SET published_at = clock_timestamp()
	WHERE number = ANY((SELECT $2::bigint[])::bigint[]) AND published_at IS NULL AND dead_at IS NULL
		AND coalesce(replays, 0) = coalesce(($10::integer[])[array_position($9::bigint[], number)], 0)
	RETURNING number),
unsent AS (
	UPDATE {table} o SET dead_at = CASE WHEN r.dead THEN clock_timestamp() END, failures = nullif(r.failures, 0),
		unknowns = CASE WHEN r.dead OR r.adopted THEN nullif(r.unknowns, 0) ELSE o.unknowns END, last_error = r.reason,
		due_at = CASE WHEN r.adopted THEN coalesce(o.due_at, o.written_at) ELSE o.due_at END
	FROM unnest($3::bigint[], $4::boolean[], $5::boolean[], $6::integer[], $7::integer[], $8::text[])
		AS r (number, dead, adopted, failures, unknowns, reason)
	WHERE o.number = r.number AND o.published_at IS NULL AND o.dead_at IS NULL
		AND coalesce(o.replays, 0) = coalesce(($10::integer[])[array_position($9::bigint[], o.number)], 0)
	RETURNING o.number)
SELECT pg_current_snapshot()::text,
	ARRAY(SELECT number FROM removed UNION ALL SELECT number FROM published UNION ALL SELECT number FROM unsent)`

// sorted are verdicts as the statement takes them.
type sorted struct {
	rows                       map[int64]*row
	removed, published, unsent []int64
	dead, adopted              []bool
	failures, unknowns         []int32
	reasons                    []string
	copies                     []int64 // rows that were replayed
	replays                    []int32 // how often
}

// sortVerdicts takes the last verdict of each row: the statement must not change a row twice.
func sortVerdicts(batch []verdict) (w sorted) {
	w.rows = make(map[int64]*row, len(batch))
	for _, v := range batch {
		w.rows[v.row.number] = v.row
	}
	var last map[int64]int // verdict of each row, if one has several
	if len(w.rows) < len(batch) {
		last = make(map[int64]int, len(batch))
		for i, v := range batch {
			last[v.row.number] = i
		}
	}
	for i, v := range batch {
		number := v.row.number
		if last != nil && last[number] != i {
			continue
		}
		if v.row.replays > 0 {
			w.copies, w.replays = append(w.copies, number), append(w.replays, int32(v.row.replays))
		}
		switch v.state {
		case outbox.Removed:
			w.removed = append(w.removed, number)
		case outbox.Published:
			w.published = append(w.published, number)
		default:
			w.unsent = append(w.unsent, number)
			w.dead = append(w.dead, v.state == outbox.Dead)
			w.adopted = append(w.adopted, v.adopted)
			w.failures = append(w.failures, int32(v.failures))
			w.unknowns = append(w.unknowns, int32(v.unknowns))
			w.reasons = append(w.reasons, v.reason)
		}
	}
	return w
}
