package redisstore

import (
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// A plain claim is SET NX GET: it makes a record that nobody knows yet, or tells what there is, in one step. It costs
// the server a third of what the script does. Fence and end of the lease are stamped here, when the command is written,
// from bounds of the server's time; docs/adr/0012 shows why that is safe. A key that is neither new nor done is asked
// for again, by script.

// A stamp puts fence and end of lease into the record of a plain claim. It does so each time that the claim is written,
// so a repetition, perhaps after a failover, does not carry an old fence.
type stamp struct {
	clock *clock
	lease uint64 // µs
	fence uint64 // when it was written last
	times int    // how often it was written
}

func (s *stamp) put(record []byte) {
	fence, most := s.clock.stamp(time.Now())
	s.fence = fence
	s.times++
	appendDigits(record[:3], fence, fenceSize)
	appendDigits(record[:len(record)-leaseSize], most+s.lease, leaseSize)
}

// claimPlainly makes it a plain claim. The record lives longer by as much as the lease may be, as far as that is known
// before the claim is written.
func (s *Store) claimPlainly(op *operation, index int, r *dedupstore.Request, now time.Time) {
	s.on(op, index, s.scripts.claim, r.Key)
	b := append(op.packed, layoutVersion, stateRunning, '-') //nolint:gocritic // it goes back there
	b = appendRequest(appendDigits(b, 0, fenceSize), r)
	b[len(b)-leaseSize-1] = 'l'
	op.packed, op.stamp = b, stamp{clock: &s.clock, lease: 1000 * uint64(milliseconds(r.Lease))}
	least, most := s.clock.bounds(now)
	op.ms[0] = milliseconds(r.Lease) + milliseconds(r.Retention) + int64(most-least)/1000 + 1
	op.args = [...]any{"set", &op.name, op, "nx", "get", "px", &op.ms[0]}
}

// plainAnswer reads the reply of a plain claim. Known is false if the script must be asked.
func plainAnswer(r *dedupstore.Request, op *operation) (a dedupstore.Answer, known bool, err error) {
	if errors.Is(op.err, redis.Nil) {
		// Written again: which of the stamps is in the record?
		return firstRun(r, op.stamp.fence), op.stamp.times == 1, nil
	}
	if _, refused := errors.AsType[redis.Error](op.err); refused { // such as at maxmemory: the script says it better
		return a, false, nil
	}
	if op.err != nil {
		return a, true, op.failure()
	}
	rec, err := decodeRecord(op.reply)
	if err != nil || rec.state != stateDone && rec.state != statePublished {
		return a, false, nil //nolint:nilerr // the script says what is wrong with it
	}
	letter := byte(replyDone)
	if f := rec.sections['f']; f != "" && !r.Fingerprint.IsZero() {
		asked := string(appendFingerprint(nil, r.Fingerprint))
		if asked[:4] == f[:4] && asked != f {
			letter = replyMismatch
		}
	}
	now, _ := op.stamp.clock.bounds(time.Now())
	a, err = answerOf(letter, r, &rec, &rec, now)
	return a, err == nil, nil
}

// plainNow tells whether a claim can be plain now. There is one node then, and one clock.
func (s *Store) plainNow(r *dedupstore.Request, now time.Time) bool {
	return s.plain.Load() && !s.known.Load() && !s.barred.Load() && r.Rerun == 0 && s.clock.known(now)
}
