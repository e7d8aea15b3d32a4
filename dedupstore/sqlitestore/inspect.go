package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

const duplicatesSQL = `
SELECT coalesce(max(count), 0), coalesce(max(last_at), 0) FROM "{table}_duplicates" WHERE number = ? AND first_at = ?`

// noteSQL begins anew when the number belongs to another record than before.
const noteSQL = `
INSERT INTO "{table}_duplicates" (number, first_at, count, last_at)
SELECT number, first_at, ?2, ?3 FROM "{table}" WHERE key = ?1
ON CONFLICT (number) DO UPDATE SET last_at = excluded.last_at, first_at = excluded.first_at,
	count = excluded.count + CASE WHEN first_at = excluded.first_at THEN count ELSE 0 END`

// Look implements [dedupstore.Inspector]. It does not wait for the write lock.
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	records := make([]dedupstore.Record, len(keys))
	for i, key := range keys {
		rec, err := s.read(ctx, key.String(), clock())
		if err != nil {
			return nil, fmt.Errorf("sqlitestore: look: %w", err)
		}
		records[i] = rec.look(key)
		var last int64
		err = s.db.QueryRowContext(ctx, s.in(duplicatesSQL), rec.number, rec.first).Scan(&records[i].Duplicates, &last)
		if err != nil {
			return nil, fmt.Errorf("sqlitestore: look: %w", ended(ctx, err))
		}
		records[i].LastDuplicate = lastAt(last)
	}
	return records, nil
}

// NoteDuplicates implements [dedupstore.Inspector]. Counts are kept as long as their records.
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	err := s.write(ctx, s.gate.enterLast, func(ctx context.Context, t *lockedTx) error {
		for _, d := range duplicates {
			_, err := t.ExecContext(ctx, s.in(noteSQL), d.Key.String(), d.Count, d.Last.UnixMicro())
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlitestore: note duplicates: %w", noRoom(err))
	}
	return nil
}

// look is what a record says to people.
func (rec *record) look(key dedupstore.Key) dedupstore.Record {
	if rec.state == dedupstore.Absent {
		return dedupstore.Record{Key: key, State: dedupstore.Absent}
	}
	last := rec.attempt()
	seen := dedupstore.Record{
		Key: key, State: rec.state, Started: rec.started && rec.state == dedupstore.Running, Fence: rec.fence,
		Attempts: rec.attempts, Returned: rec.returned, Reruns: rec.reruns,
		First: time.UnixMicro(rec.first), Claimed: last.Claimed, Ended: last.Ended,
		Expires: time.UnixMicro(rec.expires), Holder: rec.holder, Trace: rec.trace,
		History: rec.past(), Outcome: rec.outcome,
	}
	seen.Outcome.Produced = dedupstore.Stubs(seen.Outcome.Produced)
	if rec.state != dedupstore.Finished {
		seen.Until = time.UnixMicro(max(rec.lease, rec.due)) // one of them is 0
	}
	if rec.state == dedupstore.Finished || rec.state == dedupstore.Publishing {
		seen.Decided = rec.decided
	}
	return seen
}

// attempt is the record's last one. The fence says when it was claimed, as far as the clock was not set back.
func (rec *record) attempt() dedupstore.Attempt {
	const most = 96 // bytes that the history has of a reason
	reason := rec.outcome.Reason[:min(len(rec.outcome.Reason), most)]
	a := dedupstore.Attempt{
		Claimed: time.UnixMicro(int64(rec.fence)).UTC(), Holder: rec.holder, Reason: strings.ToValidUTF8(reason, ""),
	}
	if rec.took.Valid {
		a.Ended = a.Claimed.Add(time.Duration(rec.took.Int64) * time.Millisecond)
	}
	return a
}

// past reads the attempts before the last one. It is evidence: a text that is none counts for nothing.
func (rec *record) past() (attempts []dedupstore.Attempt) {
	if rec.history.Valid {
		_ = json.Unmarshal([]byte(rec.history.String), &attempts)
	}
	return attempts
}

// moveOn puts the last attempt into the history, for the next one.
func (rec *record) moveOn() {
	past := append(rec.past(), rec.attempt())
	text, _ := json.Marshal(past[max(0, len(past)-dedupstore.MaxHistory):])
	rec.history = sql.NullString{String: string(text), Valid: true}
}
