package redisstore

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// The positions in the claim script's reply.
const (
	atStatus = iota
	atFound
	atClaimFence
	atAttempts
	atFence
	atWait
	atAge
	atTrace
	atKind
	atExhausted
	atReason
	atResult
	atTruncated
	atProduced
	atContent
	atReturned
	replyLength
)

// decodeAnswer reads the claim script's reply. The error says what is wrong with the record behind it.
func decodeAnswer(reply []string, r dedupstore.Request) (dedupstore.Answer, error) {
	if len(reply) != replyLength {
		return dedupstore.Answer{}, fmt.Errorf("gave a reply of %d parts, want %d", len(reply), replyLength)
	}
	var p parser
	answer := dedupstore.Answer{
		Status: dedupstore.Status(reply[atStatus]),
		Found:  p.state(reply[atFound]),
		Fence:  p.fence("fence", reply[atFence]),
		Age:    p.microseconds("first", reply[atAge]),
		Trace:  reply[atTrace],
	}
	claim := dedupstore.Claim{
		Key: r.Key, Owner: r.Owner, Lease: r.Lease, Retention: r.Retention,
		Fence: p.fence("fence", reply[atClaimFence]), Attempt: p.count("attempts", reply[atAttempts]),
		Returned: p.count("returned", reply[atReturned]),
	}
	switch answer.Status {
	case dedupstore.AcquiredRun:
		answer.Claim = claim
		p.check(claim.Attempt > 0, "has attempts %d although it runs", claim.Attempt)
	case dedupstore.AcquiredPublish:
		answer.Claim, answer.Outcome = claim, p.outcome(reply, true)
	case dedupstore.Done:
		answer.Outcome = p.outcome(reply, false)
	case dedupstore.Busy:
		answer.Wait = p.microseconds("lease", reply[atWait])
	case dedupstore.Mismatch:
	default:
		p.check(false, "gave status %q", reply[atStatus])
	}
	p.check(answer.Claim == (dedupstore.Claim{}) || claim.Fence > 0, "has fence %d although it is owned", claim.Fence)
	if p.err != nil {
		return dedupstore.Answer{}, p.err
	}
	return answer, nil
}

// A parser reads fields and keeps the first error.
type parser struct{ err error }

func (p *parser) check(ok bool, format string, args ...any) {
	if !ok && p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *parser) state(s string) dedupstore.State {
	state := dedupstore.State(s)
	switch state {
	case dedupstore.Absent, dedupstore.Running, dedupstore.Retryable, dedupstore.Publishing, dedupstore.Finished:
	default:
		p.check(false, "has state %q", s)
	}
	return state
}

func (p *parser) fence(name, s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	p.check(err == nil, "has %s %q", name, s)
	return n
}

func (p *parser) count(name, s string) int {
	n, err := strconv.ParseInt(s, 10, 32)
	p.check(err == nil && n >= 0, "has %s %q", name, s)
	return int(n)
}

func (p *parser) microseconds(name, s string) time.Duration {
	n, err := strconv.ParseInt(s, 10, 64)
	ok := err == nil && 0 <= n && n <= math.MaxInt64/int64(time.Microsecond)
	p.check(ok, "has a %s that is %q µs away", name, s)
	if !ok {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

func (p *parser) flag(name, s string) bool {
	p.check(s == "" || s == "1", "has %s %q", name, s)
	return s == "1"
}

// outcome reads an outcome, with headers and payloads of what it produced if they are still to be published.
func (p *parser) outcome(reply []string, content bool) dedupstore.Outcome {
	o := dedupstore.Outcome{
		Kind:      dedupstore.Kind(reply[atKind]),
		Exhausted: p.flag("exhausted", reply[atExhausted]),
		Reason:    reply[atReason],
		Truncated: p.flag("truncated", reply[atTruncated]),
	}
	p.check(o.Kind == dedupstore.Succeeded || o.Kind == dedupstore.Failed || o.Kind == dedupstore.Unknown,
		"has kind %q", reply[atKind])
	if reply[atResult] != "" {
		o.Result = []byte(reply[atResult])
	}
	produced, err := decodeProduced(reply[atProduced], reply[atContent], content)
	p.check(err == nil, "has produced messages that cannot be read: %v", err)
	o.Produced = produced
	return o
}
