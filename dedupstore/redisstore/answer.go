package redisstore

import (
	"errors"
	"strconv"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// The first bytes of replies of claims.
const (
	replyRun        = 'r'
	replyPublish    = 'p'
	replyBusy       = 'b'
	replyDone       = 'd'
	replyMismatch   = 'm'
	replyFull       = 'F'
	replyUnreadable = 'U' // of all scripts
)

// The replies of the other scripts.
const (
	replyLost = "0"
	replyOK   = "1"
)

var errReply = errors.New("the script's reply is malformed")

// A reply is what a claim's reply says, taken apart.
type reply struct {
	answer      dedupstore.Answer
	left        time.Duration // how long the record lives; zero if that is not known
	fingerprint string        // of the record, as it stands there
}

// timeOf is the server's time in the reply of a claim script.
func timeOf(s string) (uint64, bool) {
	switch {
	case len(s) == fenceSize && '0' <= s[0] && s[0] <= '9':
	case len(s) > 1+fenceSize && s[0] != replyUnreadable:
		s = s[1 : 1+fenceSize]
	default:
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && n < maxFence
}

// decodeAnswer reads the reply of a claim script. The error says what is wrong with the record behind it.
func decodeAnswer(s string, r dedupstore.Request) (reply, error) {
	if len(s) == fenceSize && '0' <= s[0] && s[0] <= '9' {
		fence, err := strconv.ParseUint(s, 10, 64)
		if err != nil || fence == 0 || fence > maxFence {
			return reply{}, errReply
		}
		return reply{answer: dedupstore.Answer{
			Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: claimOf(r, fence, 1, 0),
		}}, nil
	}
	const head = 1 + 16 + 16 + lengthSize
	if len(s) < head {
		return reply{}, errReply
	}
	now, err1 := strconv.ParseUint(s[1:17], 10, 64)
	left, err2 := strconv.ParseInt(s[17:33], 10, 64)
	size, err3 := strconv.ParseUint(s[33:head], 16, 32)
	if err1 != nil || err2 != nil || err3 != nil || int(size) > len(s)-head {
		return reply{}, errReply
	}
	before, err := decodeRecord(s[head : head+int(size)])
	if err != nil {
		return reply{}, err
	}
	after := before
	if len(s) > head+int(size) {
		if after, err = decodeRecord(s[head+int(size):]); err != nil {
			return reply{}, err
		}
	}
	a := dedupstore.Answer{Found: states[before.state], Fence: before.fence, Age: since(before.first(), now), Trace: before.trace()}
	claim := claimOf(r, after.fence, int(after.number('a', 1)), int(after.number('n', 0)))
	switch s[0] {
	case replyRun:
		a.Status, a.Claim = dedupstore.AcquiredRun, claim
		if claim.Attempt == 0 {
			err = errors.New("runs without an attempt")
		}
	case replyPublish:
		a.Status, a.Claim, a.Fence = dedupstore.AcquiredPublish, claim, after.decided()
		a.Outcome, err = after.outcome(true)
	case replyDone:
		a.Status, a.Fence = dedupstore.Done, before.decided()
		a.Outcome, err = before.outcome(false)
	case replyBusy:
		a.Status, a.Wait = dedupstore.Busy, before.wait(now)
	case replyMismatch:
		a.Status = dedupstore.Mismatch
	default:
		err = errReply
	}
	if err != nil {
		return reply{}, err
	}
	lives := max(0, min(left, int64(maxLease/time.Millisecond)))
	return reply{a, time.Duration(lives) * time.Millisecond, before.sections.get('f')}, nil
}

func claimOf(r dedupstore.Request, fence uint64, attempt, returned int) dedupstore.Claim {
	return dedupstore.Claim{
		Key: r.Key, Owner: r.Owner, Fence: fence, Attempt: attempt, Returned: returned, Lease: r.Lease, Retention: r.Retention,
	}
}
