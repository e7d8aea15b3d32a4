package redisstore

import (
	"errors"
	"strconv"

	"github.com/oncemill/oncemill/dedupstore"
)

// The first bytes of replies of claims.
const (
	replyRun        = 'r'
	replyPublish    = 'p'
	replyBusy       = 'b'
	replyDone       = 'd'
	replyMismatch   = 'm'
	replySuspect    = 's'
	replyFull       = 'F'
	replyUnreadable = 'U' // of all scripts

	// The replies of the other scripts.
	replyLost = "0"
	replyOK   = "1"

	replySet = "OK" // of a conditional finish
)

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
	return n, err == nil && 0 < n && n <= maxFence
}

// decodeAnswer reads the reply of a claim script. The error says what is wrong with the record behind it.
func decodeAnswer(s string, r *dedupstore.Request) (a dedupstore.Answer, err error) {
	now, ok := timeOf(s)
	if ok && len(s) == fenceSize {
		return firstRun(r, now), nil
	}
	var old, changed string
	if ok {
		old, changed, ok = cutText(s[1+fenceSize:], lengthSize)
	}
	if !ok {
		return a, errReply
	}
	before, err := decodeRecord(old)
	if err != nil {
		return a, err
	}
	after := before
	if changed != "" {
		if after, err = decodeRecord(changed); err != nil {
			return a, err
		}
	}
	return answerOf(s[0], r, &before, &after, now)
}

func firstRun(r *dedupstore.Request, fence uint64) dedupstore.Answer {
	return dedupstore.Answer{
		Status: dedupstore.AcquiredRun, Found: dedupstore.Absent, Claim: claimOf(r, fence, 1, 0),
	}
}

// answerOf is what the letter of a reply says of the record that there was before the claim, and is after it.
func answerOf(letter byte, r *dedupstore.Request, before, after *record, now uint64) (dedupstore.Answer, error) {
	a := dedupstore.Answer{
		Found: states[before.state], Fence: before.fence, Age: since(before.first(), now), Trace: before.trace(),
	}
	claim := claimOf(r, after.fence, int(after.number('a', 1)), int(after.number('n', 0)))
	var err error
	switch letter {
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
		a.Status, a.Wait = dedupstore.Busy, since(now, before.until())
	case replyMismatch:
		a.Status = dedupstore.Mismatch
	case replySuspect:
		a.Status = dedupstore.Suspect
	default:
		err = errReply
	}
	if err != nil {
		a = dedupstore.Answer{}
	}
	return a, err
}

func claimOf(r *dedupstore.Request, fence uint64, attempt, returned int) dedupstore.Claim {
	return dedupstore.Claim{
		Key: r.Key, Owner: r.Owner, Fence: fence, Attempt: attempt, Returned: returned,
		Lease: r.Lease, Retention: r.Retention, Holder: r.Holder,
	}
}
