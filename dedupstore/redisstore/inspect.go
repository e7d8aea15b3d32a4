package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// beside is what the name of the hash with a record's duplicates has after the record's. No record's name ends so: "?"
// is escaped in IDs.
const beside = "?"

// Look implements [dedupstore.Inspector], in one pipeline that only reads. Expires is by this process's clock. It ends
// with ctx if the client heeds contexts.
func (s *Store) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = s.name(key)
	}
	looked, err := s.lookUp(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("redisstore: look: %w", err)
	}
	records := make([]dedupstore.Record, len(keys))
	for i, l := range looked {
		if records[i], err = l.record(); err != nil {
			return nil, fmt.Errorf("redisstore: look: %w", err)
		}
		records[i].Key = keys[i]
	}
	return records, nil
}

// A lookup is what was asked about a record.
type lookup struct {
	name  string
	raw   *redis.StringCmd
	left  *redis.DurationCmd
	noted *redis.SliceCmd
}

// lookUp asks about records by their names. What holds something else than a record is no error yet.
func (s *Store) lookUp(ctx context.Context, names []string) ([]lookup, error) {
	pipe := s.rdb.Pipeline()
	asked := make([]lookup, len(names))
	for i, name := range names {
		noted := pipe.HMGet(ctx, name+beside, "count", "last")
		asked[i] = lookup{name, pipe.Get(ctx, name), pipe.PTTL(ctx, name), noted}
	}
	_, failed := pipe.Exec(ctx)
	for _, l := range asked {
		if err := cmp.Or(untold(l.raw.Err()), l.left.Err(), l.noted.Err(), untold(failed)); err != nil {
			return nil, fmt.Errorf("%q: %w", l.name, err)
		}
	}
	return asked, nil
}

// untold is why a reply did not come that would tell what a key holds.
func untold(err error) error {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil
	}
	return unsaid(err)
}

// record reads the replies. The error is a [*dedupstore.RecordError].
func (l lookup) record() (seen dedupstore.Record, err error) {
	seen.State = dedupstore.Absent
	if !errors.Is(l.raw.Err(), redis.Nil) {
		if seen, err = decodeSeen(l.name, l.raw); err != nil {
			return seen, err
		}
		if left := l.left.Val(); left > 0 {
			seen.Expires = time.Now().Add(left)
		}
	}
	if count, noted := l.noted.Val()[0].(string); noted {
		last, _ := l.noted.Val()[1].(string)
		ms, _ := strconv.ParseInt(last, 10, 64)
		seen.Duplicates, _ = strconv.Atoi(count)
		seen.LastDuplicate = time.UnixMilli(ms)
	}
	return seen, nil
}

// decodeSeen reads what a key holds, or its head, as people see it.
func decodeSeen(name string, raw *redis.StringCmd) (seen dedupstore.Record, err error) {
	var rec record
	if raw.Err() != nil {
		err = errors.New("is not a string")
	} else if rec, err = decodeRecord(raw.Val()); err == nil {
		seen, err = rec.look()
	}
	if err != nil {
		return seen, &dedupstore.RecordError{Key: name, Problem: err.Error()}
	}
	return seen, nil
}

// look is what the record tells people.
func (rec *record) look() (seen dedupstore.Record, err error) {
	seen = dedupstore.Record{
		State: states[rec.state], Started: rec.state == stateStarted, Fence: rec.fence,
		Attempts: int(rec.number('a', 1)), Returned: int(rec.number('n', 0)), Reruns: int(rec.number('r', 0)),
		First: moment(rec.first()), Claimed: moment(rec.fence), Ended: rec.ended(rec.fence), Until: moment(rec.until()),
		Holder: rec.sections['w'], Trace: rec.trace(),
	}
	if rec.kind != '-' {
		seen.Decided, seen.ByOperator = rec.decided(), rec.has('o')
	} else {
		seen.Crashes = int(rec.number('c', 0))
	}
	if seen.History, err = rec.history(); err != nil {
		return seen, err
	}
	seen.Outcome, err = rec.outcome(false)
	return seen, err
}

// history reads the attempts before the last one.
func (rec *record) history() (past []dedupstore.Attempt, err error) {
	for rest := rec.sections['H']; rest != ""; {
		attempt, after, ok := cutText(rest, lengthSize)
		t, err := decodeSections(attempt)
		if !ok || err != nil {
			return nil, errors.New("has a history that cannot be read")
		}
		claimed := t.number('b', 0)
		past = append(past, dedupstore.Attempt{
			Claimed: moment(claimed), Ended: t.ended(claimed), Holder: t['w'], Reason: strings.ToValidUTF8(t['M'], ""),
		})
		rest = after
	}
	return past, nil
}

// ended is when a run ended that was claimed at a time, if that is known.
func (t sections) ended(claimed uint64) time.Time {
	if !t.has('k') {
		return time.Time{}
	}
	return moment(claimed + 1000*t.number('k', 0))
}

// moment is a time in µs; 0 is none.
func moment(us uint64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(us))
}

// NoteDuplicates implements [dedupstore.Inspector].
func (s *Store) NoteDuplicates(ctx context.Context, duplicates []dedupstore.Duplicates) error {
	return errors.Join(s.run(ctx, len(duplicates), func(op *operation, i int) error {
		d := duplicates[i]
		s.on(op, i, noteScript, d.Key)
		op.name += beside
		op.packed = strconv.AppendInt(op.packed, int64(d.Count), 10)
		op.with(d.Last.UnixMilli(), milliseconds(d.Retention))
		return d.Key.Validate()
	})...)
}
