package oncemill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// A run is a call on its way through the guard: claim, attempt, settle. It is for one goroutine at a time.
type run struct {
	guard *Guard
	call  *Call
	owner owner
	place int   // among the calls of its owner
	wrong error // what is wrong with the call

	token    string                  // of its claims; a new one after ErrNotDurable
	shard    *shard                  // that was asked last
	sent     time.Time               // when the first claim with this token was sent, or its transaction began
	again    bool                    // the last claim followed one with this token that got no answer
	first    bool                    // it may run without a claim
	state    state                   // of the last claim
	last     *dedupstore.ClaimResult // how it was answered
	took     time.Duration           // how long it was under way
	lease    lease                   // of the granted claim
	context  runContext              // of its handler, but for an inbox's
	turn     func()                  // leaves the turn of a suspect; nil: it has none
	ending   ending                  // how it ends
	settling context.Context         // of the caller, while a plain success is being stored together with others
}

// An owner has made runs, and is told of them.
type owner interface {
	// claimed is told that a claim which was asked for together with others has its answer, in a goroutine that makes
	// further claims: it must not wait for anything.
	claimed(r *run)

	// handle calls the handler of a run.
	handle(ctx context.Context, r *run) (dedupstore.Outcome, error)

	// ended is told how a run has ended, once. It must not wait for anything either.
	ended(r *run, res Result, err error)
}

// A state is how far a claim has come.
type state uint8

const (
	unasked  state = iota
	answered       // together with others; claim has not read the answer yet
	granted        // and claim has returned it
)

// init makes it the run of a call, which must not be changed afterwards. It sends nothing.
func (r *run) init(g *Guard, call *Call, owner owner, token string) {
	r.guard, r.call, r.owner, r.token, r.last, r.first = g, call, owner, token, &noAnswer, g.first.may(call)
	if !g.policy.Shadow {
		r.wrong = call.validate()
	}
}

// noAnswer is the last answer of a run that has none.
var noAnswer dedupstore.ClaimResult

// claimTogether asks for the run's key, together with others that ask at this time, and tells the run's owner when
// there is an answer. A granted claim is extended until the run is attempted or given back. Claim only what can start
// now: a crash uses up an attempt of it. If it returns a shard, the claim waits for the flush of that shard's claims.
//
// It asks nothing where the store is down: claim asks, and waits as the call says. It also asks nothing for a first
// call over an inbox, whose attempt begins with a transaction.
func (r *run) claimTogether(ctx context.Context, now time.Time) *shard {
	g := r.guard
	if g.policy.Shadow || r.wrong != nil || ctx.Err() != nil || r.first {
		r.owner.claimed(r)
		return nil
	}
	shard := g.shards.of(ctx, &r.call.Key)
	r.shard, r.sent = shard, now
	if !shard.breaker.healthy.Load() {
		r.sent = time.Time{}
		r.owner.claimed(r)
		return nil
	}
	shard.claims.Put(g.request(ctx, r.call, r.token), r) // which may answer before it returns
	return shard
}

// initAll makes runs of calls.
func initAll(runs []run, g *Guard, calls []Call, owner owner) {
	tokens := ids.Tokens(len(runs))
	for i := range runs {
		runs[i].init(g, &calls[i], owner, tokens[i*ids.TokenSize:(i+1)*ids.TokenSize])
		runs[i].place = i
	}
}

// claimAll is claimTogether for several runs.
func claimAll(runs []run, contexts []context.Context) {
	var asked *shard
	now := time.Now()
	for i := range runs {
		shard := runs[i].claimTogether(contexts[i], now)
		if asked != nil && shard != nil && shard != asked {
			asked.claims.Flush()
		}
		asked = cmp.Or(shard, asked)
	}
	if asked != nil {
		asked.claims.Flush()
	}
}

// asks returns when a claim is sent that is sent now. The lease counts from the first one with its token.
func (r *run) asks() time.Time {
	now := time.Now()
	if r.sent.IsZero() {
		r.sent = now
	}
	return now
}

// Receive takes the answer to a claim that was sent together with others.
func (r *run) Receive(result *dedupstore.ClaimResult) {
	if errors.Is(result.Err, errUnasked) { // claim asks
		r.sent = time.Time{}
	} else {
		r.answer(result, r.sent)
		r.state = answered
	}
	r.owner.claimed(r)
}

// answer takes the answer to a claim that was sent at a time.
func (r *run) answer(result *dedupstore.ClaimResult, sent time.Time) {
	r.last, r.took = result, time.Since(sent)
	if r.holds() {
		r.lease.granted(&r.last.Answer.Claim, r.shard, r.sent)
		r.guard.heartbeat.add(&r.lease)
	}
}

// holds reports whether the last claim was granted.
func (r *run) holds() bool {
	status := r.last.Answer.Status
	return r.last.Err == nil && (status == dedupstore.AcquiredRun || status == dedupstore.AcquiredPublish)
}

// giveBack gives the claim of a run back that will not be attempted.
func (r *run) giveBack(ctx context.Context) {
	r.guard.heartbeat.remove(&r.lease)
	switch {
	case !r.holds():
	case r.last.Answer.Status == dedupstore.AcquiredRun:
		r.guard.giveBack(ctx, &r.lease)
	default: // a publish step
		r.guard.postpone(ctx, &r.lease)
	}
}

// What follows a claim.
type next uint8

const (
	toEnd    next = iota // nothing: there is an answer
	toRun                // the attempt, under the run's lease
	toBypass             // the handler, unguarded
)

// claim asks and waits until there is an answer, and says what follows.
func (r *run) claim(ctx context.Context) (*ending, next) {
	if r.state == granted { // for a batch that failed
		return nil, toRun
	}
	switch res, err := r.ask(ctx); {
	case errors.Is(err, errBypass):
		return nil, toBypass
	case err != nil:
		return r.ends(ending{err: err}), toEnd
	case res != nil:
		return r.ends(ending{res: *res}), toEnd
	}
	switch a := &r.last.Answer; a.Status {
	case dedupstore.AcquiredRun:
		r.state = granted
		return nil, toRun
	case dedupstore.AcquiredPublish:
		return r.known(publish), toEnd
	case dedupstore.Done:
		r.guard.duplicates.note(&r.call.Key)
		return r.known(nothing), toEnd
	case dedupstore.Mismatch:
		return r.ends(ending{res: Result{Status: StatusMismatch}}), toEnd
	default:
		return r.ends(ending{res: storeDown("claim", fmt.Errorf("store answered %q", a.Status))}), toEnd
	}
}

// known is the ending of a call whose outcome an earlier run has decided.
func (r *run) known(left left) *ending {
	a := &r.last.Answer
	return r.ends(ending{left: left, res: Result{
		Status: StatusDone, Outcome: a.Outcome, Duplicate: true, Age: a.Age, Fence: a.Fence,
	}})
}

// How often a call that waits asks again: often at first, because most holders are quick.
const (
	minPoll = 5 * time.Millisecond
	maxPoll = 500 * time.Millisecond
)

// errBypass says that the policy lets the handler run although the store does not answer.
var errBypass = errors.New("the policy fails open")

// ask asks, unless that has been done, and waits while the key is busy or the store does not answer, at most for
// Call.MaxWait. A suspect waits for its turn, and has it when ask returns. The result is nil if the store has said
// what to do. Under the same owner token any copy of any of the claims may be the one that the store applied, so leases
// are measured from the first.
func (r *run) ask(ctx context.Context) (*Result, error) {
	g, key := r.guard, &r.call.Key
	start := time.Now()
	busy, failed, waits := false, false, false
	for poll := minPoll; ; poll = min(2*poll, maxPoll) {
		if ctx.Err() != nil && r.state != answered {
			return nil, context.Cause(ctx)
		}
		if r.state != answered {
			r.shard = g.shards.of(ctx, key)
		}
		wake := r.shard.breaker.recovery() // taken before the store is asked, so that no recovery is missed
		err := r.askOnce(ctx)
		a := &r.last.Answer
		switch {
		case err == nil && a.Status == dedupstore.Suspect:
			if wait, ok := r.waitTurn(ctx); !ok {
				return &Result{Status: StatusNotDue, Wait: wait}, context.Cause(ctx)
			}
			start, poll = time.Now(), minPoll
			continue
		case err == nil && a.Status != dedupstore.Busy:
			r.count(ctx, a)
			return nil, nil
		case is[*dedupstore.InvalidError](err):
			return nil, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil && !busy:
			r.count(ctx, a)
			busy = true
		}
		pause, res := poll, &Result{Status: StatusBusy, Wait: a.Wait}
		if err == nil {
			r.leaveTurn() // it is another's
			if a.Found == dedupstore.Retryable {
				res.Status = StatusNotDue
			}
			wake = nil
			if a.Wait > 0 {
				pause = min(pause, max(a.Wait, time.Millisecond))
			}
		} else {
			// its owner has settled, and replicas are not back in milliseconds
			if errors.Is(err, dedupstore.ErrNotDurable) {
				r.token, r.sent, pause = newToken(), time.Time{}, maxPoll
			}
			if refusal, ok := errors.AsType[*refusalError](err); ok {
				pause, err = refusal.wait, refusal.cause
			} else {
				g.storeFailed(ctx, "claim", err)
			}
			*res = storeDown("claim", err)
			if g.policy.StoreDown == FailOpen && !refuses(err) && !busy { // busy: somebody is known to be at it
				return nil, errBypass
			}
			if !failed {
				g.tally(ctx, key, &telemetry.Answer{Outcome: telemetry.StoreError})
				g.logRefusal(ctx, key, err)
				failed = true
			}
		}
		left := r.call.MaxWait - time.Since(start)
		if left <= 0 || !waits && !r.call.WaitLimit.enter() {
			return res.linked(ctx, r), nil
		}
		if !waits {
			waits = true
			defer r.call.WaitLimit.leave()
		}
		left += pace.Draw(ctx, 100*time.Microsecond) // those who began to wait together do not end together
		if !sleepUntil(ctx, r.call.Stopping, min(left, pause+pace.Draw(ctx, pause/4+1)), wake) {
			return res.linked(ctx, r), context.Cause(ctx)
		}
	}
}

// linked links the trace to that of the run which the caller waited for.
func (res *Result) linked(ctx context.Context, r *run) *Result {
	if res.Status != StatusStoreDown {
		k := &r.call.Key
		telemetry.LinkOriginal(ctx, k.Group, k.Handler, k.ID, r.last.Answer.Trace)
	}
	return res
}

// storeDown is the answer of a call whose store did not do an operation.
func storeDown(operation string, err error) Result {
	return Result{Status: StatusStoreDown, Err: fmt.Errorf("%s: %w", operation, err)}
}

// askOnce asks the store, unless it has answered already. It waits for the answer even if the delivery ends meanwhile.
// Otherwise the store might grant a claim that nobody gives back, and the message would wait for the end of its lease.
func (r *run) askOnce(ctx context.Context) error {
	if r.state == answered {
		r.state = unasked
		r.time(ctx)
		return r.last.Err
	}
	s := r.shard
	return s.breaker.claim(ctx, &r.call.Key, func(together bool) error {
		sent := r.asks()
		r.again = sent != r.sent && r.last.Err != nil && !errors.Is(r.last.Err, errUnasked)
		request := r.guard.request(ctx, r.call, r.token)
		if r.turn != nil {
			request.SuspectAfter = 0
		}
		queue := &s.probes
		if together {
			queue = &s.claims
		}
		r.answer(queue.Do(ctx, request), sent)
		if errors.Is(r.last.Err, errUnasked) {
			return errUnasked
		}
		r.time(ctx)
		return r.last.Err
	})
}

// time records how long the store took to answer, or to fail.
func (r *run) time(ctx context.Context) {
	if !r.guard.meter.Times(ctx) {
		return
	}
	if err := r.last.Err; err != nil {
		r.guard.meter.ClaimTook(ctx, telemetry.StoreError, storeFailure(err), r.took)
	} else {
		r.guard.meter.ClaimTook(ctx, outcomeOf(&r.last.Answer), "", r.took)
	}
}

func (g *Guard) request(ctx context.Context, call *Call, token string) dedupstore.Request {
	r := dedupstore.Request{
		Key:         call.Key,
		Owner:       token,
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

func newToken() string { return ids.Token() }

// logRefusal logs an answer that keeps a message waiting, and of many at once only the first. The breaker logs that a
// store is down.
func (g *Guard) logRefusal(ctx context.Context, key *dedupstore.Key, err error) {
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

// count reports how a claim was answered.
func (r *run) count(ctx context.Context, a *dedupstore.Answer) {
	g, key := r.guard, &r.call.Key
	g.scopes.note(key)
	o := outcomeOf(a)
	// granted before: that answer was lost
	own := r.again && a.Status == dedupstore.AcquiredRun && a.Found == dedupstore.Running
	g.tally(ctx, key, &telemetry.Answer{
		Outcome: o, Attempt: a.Claim.Attempt, Fence: a.Claim.Fence, Age: a.Age, Taken: tookOver(a) && !own,
	})
	told := o == telemetry.Claimed || own // see attempt
	if !told && o != telemetry.FingerprintMismatch && a.Status != dedupstore.Busy {
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
