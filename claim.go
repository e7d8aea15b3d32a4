package oncemill

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A Ticket is a call on its way through the guard: claim, attempt, settle. It is for one goroutine at a time.
type Ticket struct {
	guard *Guard
	call  *Call
	err   error // what is wrong with the call

	owner   string                  // the token of its claims; a new one after ErrNotDurable
	part    *part                   // of the store, that was asked last
	sent    time.Time               // when the first claim of this owner was sent
	first   bool                    // the call may run without a claim
	last    *dedupstore.ClaimResult // how the last claim was answered
	took    time.Duration           // how long the last claim was under way
	unread  bool                    // acquire has not read last yet
	taken   bool                    // acquire has returned the granted claim
	ready   func()                  // is told of the answer
	lease   lease                   // of the granted claim
	granted bool
	turn    func() // leaves the turn of a suspect; nil: it has none
	ending  ending
}

// Ticket makes a ticket for a call, which must not be changed afterwards. It sends nothing. If the call is wrong, the
// attempt returns the error.
func (g *Guard) Ticket(call *Call) *Ticket {
	t := &Ticket{guard: g, call: call, owner: newOwner(), last: &unanswered, first: g.first.may(call)}
	if !g.policy.Shadow {
		t.err = t.call.validate()
	}
	return t
}

// unanswered is the last answer of a ticket that has none.
var unanswered dedupstore.ClaimResult

// Claim asks for the ticket's key, together with other calls that ask at this time, and calls ready when there is an
// answer. Ready runs in a goroutine that makes further claims, so it must not wait for anything. A granted claim is
// extended until the ticket is attempted or given back. Claim only what can start now: a crash uses up an attempt of
// it.
//
// Claim asks nothing where the store is down: the attempt asks, and waits as its call says. It also asks nothing for a
// first call over an inbox, whose attempt begins with a transaction.
func (t *Ticket) Claim(ctx context.Context, ready func()) {
	g := t.guard
	if g.policy.Shadow || t.err != nil || ctx.Err() != nil || t.first {
		ready()
		return
	}
	t.part = g.parts.of(ctx, &t.call.Key)
	if !t.part.breaker.healthy.Load() {
		ready()
		return
	}
	t.sent, t.ready = time.Now(), ready
	t.part.claims.Go(g.request(ctx, t.call, t.owner), t.answered)
}

// answered takes the answer to a claim that was sent together with others.
func (t *Ticket) answered(result *dedupstore.ClaimResult) {
	if result.Err != errUnasked { //nolint:errorlint // never wrapped; else the attempt asks
		t.take(result, t.sent)
		t.unread = true
	}
	t.ready()
}

// take takes the answer to a claim that was sent at a time.
func (t *Ticket) take(result *dedupstore.ClaimResult, sent time.Time) {
	t.last, t.took = result, time.Since(sent)
	status := result.Answer.Status
	if result.Err != nil || status != dedupstore.AcquiredRun && status != dedupstore.AcquiredPublish {
		return
	}
	t.granted = true
	t.lease.granted(&t.last.Answer.Claim, t.part, t.sent)
	t.guard.keeper.add(&t.lease)
}

// Granted reports whether the ticket has a claim.
func (t *Ticket) Granted() bool { return t.granted }

// GiveBack gives the claim of a ticket back that will not be attempted.
func (t *Ticket) GiveBack(ctx context.Context) {
	t.guard.keeper.let(&t.lease)
	switch {
	case !t.granted:
	case t.last.Answer.Status == dedupstore.AcquiredRun:
		t.guard.giveBack(ctx, &t.lease)
	default: // a publish step
		t.guard.postpone(ctx, &t.lease)
	}
}

// How often a call that waits asks again: often at first, because most holders are quick.
const (
	minPoll = 5 * time.Millisecond
	maxPoll = 500 * time.Millisecond
)

// acquire asks, unless that has been done, and waits while the key is busy or the store does not answer, at most for
// Call.MaxWait. A suspect waits for its turn, and has it when acquire returns. Under the same owner token any copy of
// any of the claims may be the one that the store applied, so leases are measured from the first.
func (t *Ticket) acquire(ctx context.Context) error {
	g, key := t.guard, &t.call.Key
	if t.taken { // for a batch that failed
		return nil
	}
	start := time.Now()
	busy, failed, waits := false, false, false
	for poll := minPoll; ; poll = min(2*poll, maxPoll) {
		if ctx.Err() != nil && !t.unread {
			return context.Cause(ctx)
		}
		if !t.unread {
			t.part = g.parts.of(ctx, key)
		}
		wake := t.part.breaker.recovery() // taken before the store is asked, so that no recovery is missed
		err := t.ask(ctx)
		answer := &t.last.Answer
		switch {
		case err == nil && answer.Status == dedupstore.Suspect:
			if !t.waitTurn(ctx) {
				return cmp.Or(context.Cause(ctx), error(&BusyError{NotDue: true}))
			}
			start, poll = time.Now(), minPoll
			continue
		case err == nil && answer.Status != dedupstore.Busy:
			g.count(ctx, key, answer)
			t.taken = true
			return nil
		case is[*dedupstore.InvalidError](err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && !busy:
			g.count(ctx, key, answer)
			busy = true
		}
		pause := poll
		if err == nil {
			t.leaveTurn() // it is another's
			err = &BusyError{Wait: answer.Wait, NotDue: answer.Found == dedupstore.Retryable}
			wake = nil
			if answer.Wait > 0 {
				pause = min(pause, max(answer.Wait, time.Millisecond))
			}
		} else {
			// its owner has settled, and replicas are not back in milliseconds
			if errors.Is(err, dedupstore.ErrNotDurable) {
				t.owner, t.sent, pause = newOwner(), time.Time{}, maxPoll
			}
			pause, err = g.storeError(ctx, t.call.Key, pause, err)
			if g.policy.StoreDown == FailOpen && !refuses(err) && !busy { // busy: somebody is known to be at it
				return &bypassError{err}
			}
			if !failed {
				g.tally(ctx, key, &telemetry.Answer{Outcome: telemetry.StoreError})
				g.tellOf(ctx, key, err)
				failed = true
			}
		}
		left := t.call.MaxWait - time.Since(start)
		if left <= 0 {
			return err
		}
		if !waits {
			if !t.call.WaitLimit.enter() {
				return err
			}
			waits = true
			defer t.call.WaitLimit.leave()
		}
		left += pace.Draw(ctx, 100*time.Microsecond) // those who began to wait together do not end together
		if !sleepUntil(ctx, t.call.Stopping, min(left, pause+pace.Draw(ctx, pause/4+1)), wake) {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
}

// ask asks the store, unless it has answered already. It waits for the answer even if the delivery ends meanwhile.
// Otherwise the store might grant a claim that nobody gives back, and the message would wait for the end of its lease.
func (t *Ticket) ask(ctx context.Context) error {
	if t.unread {
		t.unread = false
		t.time(ctx)
		return t.last.Err
	}
	p := t.part
	return p.breaker.claim(ctx, &t.call.Key, func(together bool) error {
		sent := time.Now()
		if t.sent.IsZero() {
			t.sent = sent
		}
		request := t.guard.request(ctx, t.call, t.owner)
		if t.turn != nil {
			request.SuspectAfter = 0
		}
		if together {
			t.take(p.claims.Do(ctx, request), sent)
			if t.last.Err == errUnasked { //nolint:errorlint // never wrapped
				return errUnasked
			}
		} else {
			t.take(p.probes.Do(ctx, request), sent)
		}
		t.time(ctx)
		return t.last.Err
	})
}

// time records how long the store took to answer, or to fail.
func (t *Ticket) time(ctx context.Context) {
	if !t.guard.meter.Times(ctx) {
		return
	}
	if err := t.last.Err; err != nil {
		t.guard.meter.ClaimTook(ctx, telemetry.StoreError, storeFailure(err), t.took)
	} else {
		t.guard.meter.ClaimTook(ctx, outcomeOf(&t.last.Answer), "", t.took)
	}
}

func (g *Guard) request(ctx context.Context, call *Call, owner string) dedupstore.Request {
	r := dedupstore.Request{
		Key:         call.Key,
		Owner:       owner,
		Lease:       g.policy.Lease,
		Retention:   max(g.policy.Window, call.keep),
		MaxAttempts: g.policy.MaxAttempts,
		ParkExpired: g.policy.ExpiredLease == Park,
		Rerun:       call.Rerun,
		Trace:       telemetry.Traceparent(ctx),
		Holder:      thisProcess,

		SuspectAfter: suspectAfter,
	}
	if call.keep > 0 {
		r.MaxAttempts = stepAttempts
	}
	if g.policy.Mismatch != MismatchIgnore {
		r.Fingerprint = call.Fingerprint
	}
	return r
}

// thisProcess names host and process in records: the end of a host's name tells pods apart.
var thisProcess = holder(os.Hostname())

func holder(host string, _ error) string {
	process := ":" + strconv.Itoa(os.Getpid())
	host = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, host)
	return host[max(0, len(host)+len(process)-dedupstore.MaxHolder):] + process
}

func newOwner() string { return ids.Token() }

// storeError makes the error of a claim that failed, or was not sent because the store is down. It sets how long to
// wait for the next claim.
func (g *Guard) storeError(
	ctx context.Context, key dedupstore.Key, poll time.Duration, err error,
) (time.Duration, error) {
	if refusal, ok := err.(*refusalError); ok { //nolint:errorlint // never wrapped
		return refusal.wait, &StoreError{Op: "claim", Key: key, Err: refusal.cause}
	}
	g.storeFailed(ctx, "claim", err)
	return poll, &StoreError{Op: "claim", Key: key, Err: err}
}

// tellOf logs an answer that keeps a message waiting, and of many at once only the first. The breaker logs that a store
// is down.
func (g *Guard) tellOf(ctx context.Context, key *dedupstore.Key, err error) {
	if !refuses(err) || !g.refused.Due(sayAgain) {
		return
	}
	g.log.ErrorContext(ctx, "oncemill: a message waits because the store refuses its claim; there may be more",
		"id", key.ID, "key", key.String(), "error", err)
}

// refuses reports whether an error is the answer of a store that works: a record that cannot be read, no room, or a
// claim that is not durable.
func refuses(err error) bool {
	return is[*dedupstore.RecordError](err) || errors.Is(err, dedupstore.ErrFull) ||
		errors.Is(err, dedupstore.ErrNotDurable)
}

// bypassError is a store error at which the policy lets the handler run unguarded.
type bypassError struct{ error }

// count reports how a claim was answered.
func (g *Guard) count(ctx context.Context, key *dedupstore.Key, a *dedupstore.Answer) {
	g.scopes.note(key)
	o := outcomeOf(a)
	g.tally(ctx, key, &telemetry.Answer{
		Outcome: o, Attempt: a.Claim.Attempt, Fence: a.Claim.Fence, Age: a.Age, Taken: tookOver(a),
	})
	if o != telemetry.Claimed && o != telemetry.FingerprintMismatch && a.Status != dedupstore.Busy { // see attempt
		telemetry.LinkOriginal(ctx, key.Group, key.Handler, key.ID, a.Trace)
		if a.Status == dedupstore.AcquiredPublish && a.Fence == a.Claim.Fence { // the claim itself ended the message
			g.countEnd(ctx, key, &a.Outcome)
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
		// by the claim itself: its answer was lost
		if a.Claim.Attempt == 1 && (a.Found == dedupstore.Absent || a.Found == dedupstore.Running) {
			return telemetry.Claimed
		}
		return telemetry.Reclaimed
	case dedupstore.AcquiredPublish:
		return telemetry.PublishOnly
	case dedupstore.Mismatch:
		return telemetry.FingerprintMismatch
	case dedupstore.Busy, dedupstore.Suspect:
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
