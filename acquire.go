package oncemill

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// How often a held call asks again: often at first, because most holders are quick.
const (
	minPoll = 5 * time.Millisecond
	maxPoll = 500 * time.Millisecond
)

// acquire claims the key and waits while it is busy or the store does not answer, at most for call.MaxWait. It returns
// when the first claim was sent: under the same owner token any copy of any of the claims may be the one that the
// store applied, so leases are measured from there.
func (g *Guard) acquire(ctx context.Context, call *Call, answer *dedupstore.Answer) (first time.Time, err error) {
	start := time.Now()
	request := g.request(ctx, call)
	ask := func() error {
		if first.IsZero() {
			first = time.Now()
		}
		return g.claim(ctx, &request, answer)
	}
	busy, failed, holding := false, false, false
	for poll := minPoll; ; poll = min(2*poll, maxPoll) {
		if ctx.Err() != nil {
			return first, context.Cause(ctx)
		}
		breaker := g.breakers.of(ctx, &call.Key)
		wake := breaker.recovery() // taken before the store is asked, so that no recovery is missed
		err = breaker.claim(&call.Key, ask)
		switch {
		case err == nil && answer.Status != dedupstore.Busy:
			g.count(ctx, &call.Key, answer)
			return first, nil
		case is[*dedupstore.InvalidError](err):
			return first, err
		case ctx.Err() != nil:
			return first, context.Cause(ctx)
		case err == nil && !busy:
			g.count(ctx, &call.Key, answer)
			busy = true
		}
		pause := poll
		if err == nil {
			err = &BusyError{Wait: answer.Wait, NotDue: answer.Found == dedupstore.Retryable}
			wake = nil
			if answer.Wait > 0 {
				pause = min(pause, max(answer.Wait, time.Millisecond))
			}
		} else {
			// its owner has settled, and replicas are not back in milliseconds
			if errors.Is(err, dedupstore.ErrNotDurable) {
				request.Owner, first, pause = newOwner(), time.Time{}, maxPoll
			}
			pause, err = g.storeError(ctx, call.Key, pause, err)
			if g.mayBypass(err) && !busy { // else somebody is known to be at it
				return first, &bypassError{err}
			}
			if !failed {
				g.tally(ctx, &call.Key, &telemetry.Answer{Outcome: telemetry.StoreError})
				g.tellOf(ctx, &call.Key, err)
				failed = true
			}
		}
		left := call.MaxWait - time.Since(start)
		if left <= 0 {
			return first, err
		}
		if !holding {
			if !call.WaitLimit.enter() {
				return first, err
			}
			holding = true
			defer call.WaitLimit.leave()
		}
		if !sleepUntil(ctx, min(left, pause+rand.N(pause/4+1)), wake) {
			return first, context.Cause(ctx)
		}
	}
}

func (g *Guard) request(ctx context.Context, call *Call) dedupstore.Request {
	r := dedupstore.Request{
		Key:         call.Key,
		Owner:       newOwner(),
		Lease:       g.policy.Lease,
		Retention:   g.policy.Window,
		MaxAttempts: g.policy.MaxAttempts,
		ParkExpired: g.policy.ExpiredLease == Park,
		Rerun:       call.Rerun,
		Trace:       telemetry.Traceparent(ctx),
	}
	if g.policy.Mismatch != MismatchIgnore {
		r.Fingerprint = call.Fingerprint
	}
	return r
}

// claim asks the store. It waits for the answer even if the delivery ends meanwhile: the store may grant the claim all
// the same, and nobody would give it back, so that the message had to wait for the end of its lease.
func (g *Guard) claim(ctx context.Context, r *dedupstore.Request, answer *dedupstore.Answer) error {
	if g.meter.Times(ctx) {
		return g.timed(ctx, r, answer)
	}
	got, err := dedupstore.ClaimOne(g.patience.of(ctx), g.store, *r)
	*answer = got
	return err
}

// timed is claim for those who want to know how long it takes.
//
//go:noinline
func (g *Guard) timed(ctx context.Context, r *dedupstore.Request, answer *dedupstore.Answer) (err error) {
	sent := time.Now()
	*answer, err = dedupstore.ClaimOne(g.patience.of(ctx), g.store, *r)
	took := time.Since(sent)
	if err != nil {
		g.meter.ClaimTook(ctx, telemetry.StoreError, storeFailure(err), took)
	} else {
		g.meter.ClaimTook(ctx, outcomeOf(answer), "", took)
	}
	return err
}

// storeError makes the error of a claim that failed, or was not sent because the store is down, and says how long to
// wait for the next.
func (g *Guard) storeError(
	ctx context.Context, key dedupstore.Key, poll time.Duration, err error,
) (time.Duration, error) {
	if refusal, ok := err.(*refusalError); ok { //nolint:errorlint // never wrapped
		return refusal.wait, &StoreError{Op: "claim", Key: key, Err: refusal.cause}
	}
	g.storeFailed(ctx, "claim", err)
	return poll, &StoreError{Op: "claim", Key: key, Err: err}
}

// tellEvery is how often somebody is told of messages that wait although the store answers.
const tellEvery = time.Minute

// tellOf logs an answer that keeps a message waiting, of many at once the first. Of a store that is down the breaker
// tells.
func (g *Guard) tellOf(ctx context.Context, key *dedupstore.Key, err error) {
	if !refuses(err) {
		return
	}
	now, last := time.Now().UnixNano(), g.told.Load()
	if now-last < int64(tellEvery) || !g.told.CompareAndSwap(last, now) {
		return
	}
	g.log.ErrorContext(ctx, "oncemill: a message waits because the store refuses its claim; there may be more",
		"id", key.ID, "key", key.String(), "error", err)
}

// refuses reports whether an error is an answer of a store that works: a record that cannot be read, no room, or a
// claim that is not durable.
func refuses(err error) bool {
	return is[*dedupstore.RecordError](err) || errors.Is(err, dedupstore.ErrFull) ||
		errors.Is(err, dedupstore.ErrNotDurable)
}

// bypassError is a store error at which the policy lets the handler run unguarded.
type bypassError struct{ error }

// mayBypass reports whether the policy lets the handler run unguarded after this error. A record that cannot be read is
// an answer, a full store must not be made to forget, and a claim that is not durable must not be run on: none of them
// opens the guard.
func (g *Guard) mayBypass(err error) bool {
	return g.policy.StoreDown == FailOpen && is[*StoreError](err) && !refuses(err)
}

// count reports how a claim was answered.
func (g *Guard) count(ctx context.Context, key *dedupstore.Key, a *dedupstore.Answer) {
	o := outcomeOf(a)
	g.tally(ctx, key, &telemetry.Answer{
		Outcome: o, Attempt: a.Claim.Attempt, Fence: a.Claim.Fence, Age: a.Age, Taken: tookOver(a),
	})
	if o != telemetry.Claimed && o != telemetry.FingerprintMismatch && a.Status != dedupstore.Busy { // see otherwise
		telemetry.LinkOriginal(ctx, key.Group, key.Handler, key.ID, a.Trace)
		if a.Status == dedupstore.AcquiredPublish && a.Fence == a.Claim.Fence { // the claim itself ended the message
			g.ended(ctx, key, &a.Outcome)
		}
	}
}

func (g *Guard) tally(ctx context.Context, key *dedupstore.Key, a *telemetry.Answer) {
	g.meter.Claim(ctx, key.Group, key.Handler, key.ID, a)
}

// tookOver reports whether a claim found the expired lease of a run: it runs instead, or ended it. A first run that was
// found is the claimer's own, whose answer was lost.
func tookOver(a *dedupstore.Answer) bool {
	switch a.Status {
	case dedupstore.AcquiredRun:
		return a.Found == dedupstore.Running && a.Claim.Attempt > 1
	case dedupstore.AcquiredPublish:
		return a.Found == dedupstore.Running
	}
	return false
}

func outcomeOf(a *dedupstore.Answer) telemetry.Outcome {
	switch a.Status {
	case dedupstore.AcquiredRun:
		// by itself: its answer was lost
		if a.Claim.Attempt == 1 && (a.Found == dedupstore.Absent || a.Found == dedupstore.Running) {
			return telemetry.Claimed
		}
		return telemetry.Reclaimed
	case dedupstore.AcquiredPublish:
		return telemetry.PublishOnly
	case dedupstore.Mismatch:
		return telemetry.FingerprintMismatch
	case dedupstore.Busy:
		if a.Found == dedupstore.Retryable {
			return telemetry.NotDue
		}
		return telemetry.DuplicateInProgress
	}
	switch a.Outcome.Kind {
	case dedupstore.Failed:
		return telemetry.DuplicateFailed
	case dedupstore.Unknown:
		return telemetry.DuplicateUnknown
	}
	return telemetry.DuplicateCompleted
}
