package redisstore

import (
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// A plain claim is SET NX GET: it makes a record that nobody knows yet, or tells what there is, in one step. It costs
// the server a third of what the script does. The fence and the end of the lease are stamped here, when the command is
// written, from bounds of the server's time; docs/adr/0012 shows why that misjudges neither. What is neither new nor
// done is asked again, by script.

// A stamped record is the value of a plain claim. It is stamped each time it is written, so that one which is written
// again, after a failover perhaps, does not carry an old fence.
type stamped struct {
	clock *clock
	value []byte // a record without fence and end of lease
	lease uint64 // µs
	keep  ttl    // how long the record lives
	fence uint64 // when it was written last
	times int    // how often it was written
}

// A ttl is written after the record, and longer by as much as the lease may be.
type ttl struct {
	ms     int64 // of lease and retention
	unsure uint64
	space  [20]byte
}

// MarshalBinary is called by the client when it writes the command.
func (t *ttl) MarshalBinary() ([]byte, error) {
	return strconv.AppendInt(t.space[:0], t.ms+int64(t.unsure/1000)+1, 10), nil
}

// MarshalBinary is called by the client when it writes the command.
func (s *stamped) MarshalBinary() ([]byte, error) {
	fence, most := s.clock.stamp(time.Now())
	s.fence, s.keep.unsure = fence, most-min(most, fence)
	s.times++
	appendDigits(s.value[:3], fence, fenceSize) // in place
	return appendDigits(s.value[:len(s.value)-leaseSize], most+s.lease, leaseSize), nil
}

// plainOperation makes the operation of a plain claim.
func (s *Store) plainOperation(index int, r dedupstore.Request) *operation {
	op := newOperation(index, s.scripts.claim, s.name(r.Key))
	b := append(op.packed, layoutVersion, stateRunning, '-')
	b = appendDigits(b, 0, fenceSize)
	b = appendRequest(b, r)
	b[len(b)-leaseSize-1] = 'l'
	op.plain, op.packed = true, b
	op.stamped = stamped{
		clock: &s.clock, value: b, lease: 1000 * uint64(milliseconds(r.Lease)),
		keep: ttl{ms: milliseconds(r.Lease) + milliseconds(r.Retention)},
	}
	op.args = [9]any{"set", op.name, &op.stamped, "nx", "get", "px", &op.stamped.keep}
	return op
}

// plainAnswer reads the reply of a plain claim. It is not known if the script has to be asked.
func (s *Store) plainAnswer(r dedupstore.Request, op *operation) (a dedupstore.Answer, known bool, err error) {
	switch {
	case errors.Is(op.err, redis.Nil):
		if op.stamped.times != 1 { // written again: which of the stamps is in the record?
			return a, false, nil
		}
		claim := claimOf(r, op.stamped.fence, 1, 0)
		return dedupstore.Answer{Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: claim}, true, nil
	case refused(op.err): // memory is full, or the key is something else: the script says it better
		return a, false, nil
	case op.err != nil:
		return a, true, op.failure()
	}
	rec, err := decodeRecord(op.reply)
	if err == nil && (rec.state == stateDone || rec.state == statePublished) {
		a, known = rec.answer(r, op.stamped.clock)
	}
	return a, known, nil // the script says what is not known better
}

// refused tells whether an error is the server's.
func refused(err error) bool {
	var answer redis.Error
	return err != nil && errors.As(err, &answer)
}

// answer is what a record that is done answers, if it can be read.
func (rec *record) answer(r dedupstore.Request, c *clock) (dedupstore.Answer, bool) {
	now, _ := c.bounds(time.Now())
	a := dedupstore.Answer{
		Found: dedupstore.Finished, Fence: rec.fence, Age: since(rec.first(), now), Trace: rec.trace(),
	}
	if rec.otherContent(r) {
		a.Status = dedupstore.Mismatch
		return a, true
	}
	outcome, err := rec.outcome(false)
	a.Status, a.Outcome, a.Fence = dedupstore.Done, outcome, rec.decided()
	return a, err == nil
}

// otherContent tells whether the record's fingerprint is of the request's scheme, and another.
func (rec *record) otherContent(r dedupstore.Request) bool {
	f := rec.sections['f']
	if f == "" || r.Fingerprint.IsZero() {
		return false
	}
	asked := string(appendFingerprint(nil, r.Fingerprint))
	return asked[:4] == f[:4] && asked != f
}

// plainNow tells whether a claim can be plain now. There is one node then, and one clock.
func (s *Store) plainNow(r dedupstore.Request) bool {
	return s.plain.Load() && !s.barred.Load() && r.Rerun == 0 && s.clock.known(time.Now())
}
