package oncemill

import (
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/marks"
)

// A verdict says what becomes of a run that returned an error: it is released, or it is over, with an outcome.
type verdict struct {
	release *dedupstore.Release
	outcome dedupstore.Outcome
}

// decide says what becomes of a run that returned an error. It goes by the policy, the claim and the error. Interrupted
// means that the run was cancelled for a reason outside of it.
//
//	the error says              | policy retakes                        | policy parks
//	----------------------------|---------------------------------------|------------------------------
//	Permanent                   | failed                                | failed
//	Uncounted, or interrupted   | released, attempt given back          | unknown; with NoEffect, released
//	RetryAfter                  | released, due then                    | unknown; with NoEffect, released
//	NoEffect, or anything else  | released, due after the backoff       | unknown; with NoEffect, released
//	  on the last attempt       | failed, exhausted                     | unknown; with NoEffect, failed, exhausted
//
// A handler that is always too slow for its broker must not run for ever. So interruptions, and conflicts of an inbox,
// are believed for as many runs as a key has attempts.
func decide(p *Policy, c *dedupstore.Claim, err error, interrupted bool) verdict {
	_, permanent := mark[*marks.Permanent](err)
	_, proof := mark[*marks.NoEffect](err)
	refused, conflict := mark[*dedupstore.ConflictError](err)
	_, outage := mark[*marks.Uncounted](err)
	after, delayed := mark[*marks.RetryAfter](err)
	believed := c.Returned < p.MaxAttempts
	if conflict && permanent { // what the handler made of a transaction that was refused says nothing
		_, inside := mark[*marks.Permanent](refused.Err)
		permanent = !inside
	}
	uncounted := uncounted(err) && (believed || !conflict) || interrupted && believed

	o := dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason(err)}
	switch {
	case permanent:
		return verdict{outcome: o}
	case p.ExpiredLease == Park && !proof:
		o.Kind = dedupstore.Unknown
		return verdict{outcome: o}
	case c.Attempt >= p.MaxAttempts && !uncounted:
		o.Exhausted = true
		return verdict{outcome: o}
	}
	release := &dedupstore.Release{Reason: o.Reason, Uncounted: uncounted}
	switch {
	case delayed:
		release.Delay = after.Delay
	case !uncounted:
		release.Delay = p.Backoff.delay(c.Attempt)
	case conflict || outage: // the others may still be at it, or away
		release.Delay = p.Backoff.delay(c.Returned + 1)
	}
	return verdict{release: release}
}

// longestDelay caps RetryAfter: stores and brokers do not accept every duration.
const longestDelay = 365 * 24 * time.Hour

// reason is an error's text as stores and headers can carry it: valid UTF-8 on one line, of bounded length. Sprint
// survives an Error method that panics, such as that of a nil pointer.
func reason(err error) string { return headers.Text(fmt.Sprint(err), dedupstore.MaxReason) }
