package oncemill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/contexts"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/txctx"
)

// A Guard is the implementation of the protocol: claim, run under a heartbeat, settle. Everything that makes handlers
// safe is a thin layer on it. It is safe for concurrent use and holds nothing that must be closed.
type Guard struct {
	store    dedupstore.Store
	inbox    dedupstore.Transactor // the store, if it is one
	policy   Policy
	log      *slog.Logger
	meter    *telemetry.Meter
	breakers *breakers
	patience patience
	noInbox  sync.Once    // says that a handler wants a transaction
	told     atomic.Int64 // when somebody was last told of a claim that the store refused, in Unix nanoseconds
}

// NewGuard returns a guard over a store. The error names the field of the policy that is wrong or contradicts another.
// It does not talk to the store: see Check.
func NewGuard(store dedupstore.Store, policy Policy) (*Guard, error) {
	if isnil.Nil(store) {
		return nil, invalid("store", "is nil")
	}
	policy = policy.withDefaults()
	if err := policy.validate(); err != nil {
		return nil, err
	}
	meter, err := telemetry.NewMeter(telemetry.Providers(policy.Telemetry), store)
	if err != nil {
		return nil, fmt.Errorf("oncemill: make instruments: %w", err)
	}
	inbox, _ := store.(dedupstore.Transactor)
	if err := policy.fits(inbox); err != nil {
		return nil, err
	}
	if err := policy.waits(store); err != nil {
		return nil, err
	}
	return &Guard{
		store: store, inbox: inbox, policy: policy, log: policy.Logger, meter: meter,
		breakers: newBreakers(store, policy.StoreDown, policy.Logger),
		patience: patience{timeout: operationTimeout(policy.Lease)},
	}, nil
}

// operationTimeout bounds one operation of the store, so that several fit into a lease.
func operationTimeout(lease time.Duration) time.Duration {
	return min(max(lease/6, minLease), 5*time.Second)
}

// Policy returns the guard's policy with its defaults filled in.
func (g *Guard) Policy() Policy { return g.policy }

// Check asks the store to look at its server, if it can. Call it at start-up to fail early; a store that must not be
// used without a check makes it by itself.
func (g *Guard) Check(ctx context.Context) (dedupstore.Report, error) {
	if c, ok := g.store.(dedupstore.Checker); ok {
		return c.Check(ctx)
	}
	return dedupstore.Report{}, nil
}

// A Call names what is to be done once.
type Call struct {
	Key dedupstore.Key

	// Fingerprint identifies the content. Zero: contents are not compared.
	Fingerprint dedupstore.Fingerprint

	// Rerun asks for a stored failure to run again: the fence under which it was decided (FailedError.Fence). A
	// success, or a failure decided under another fence, is answered as to any duplicate. Zero: no rerun.
	Rerun uint64

	// MaxWait is how long Run waits for a key that is busy or not due, and for a store that does not answer, before it
	// returns BusyError or StoreError. Zero: not at all. A store that is down is not asked once a call, and all calls
	// that it held go on when it answers again. A policy that fails open does not wait for the store.
	MaxWait time.Duration

	// WaitLimit bounds how many calls wait at once. When it is full, Run returns at once the error that it would have
	// returned after MaxWait. Nil: no bound.
	WaitLimit *WaitLimit

	// DeadLetter makes what a failed or unknown outcome produces. It may be called again by others for the same
	// failure, and must make the same IDs then: derive them from the key and the fence under which the outcome was
	// decided. Nil: failures produce nothing.
	DeadLetter func(outcome dedupstore.Outcome, attempt int, fence uint64) []dedupstore.Produced

	// Publish publishes what the outcome produced, and returns nil only when all of it is acknowledged. Nil: the
	// caller publishes, see Result.Publication.
	Publish func(ctx context.Context, produced []dedupstore.Produced) error
}

// A Result is how a call ended: with an outcome.
type Result struct {
	Outcome   dedupstore.Outcome
	Duplicate bool          // an earlier run decided the outcome
	Age       time.Duration // since the key's first claim, for duplicates
	Fence     uint64        // under which the outcome was decided; 0 if nothing was recorded
	Attempt   int           // the run that this call made, from 1; 0 if it made none under a claim
	Bypassed  bool          // the handler ran unguarded: the store did not answer, or shadow mode

	// Publication is set if Call.Publish is nil and something has to be published before the message may be
	// acknowledged.
	Publication *Publication

	err error // the handler's, of a run that this call made
}

// Failure returns the outcome as a *FailedError, or nil if it is a success.
func (r Result) Failure() error {
	if r.Outcome.Kind == dedupstore.Succeeded {
		return nil
	}
	return &FailedError{Outcome: r.Outcome, Duplicate: r.Duplicate, Age: r.Age, Fence: r.Fence, Err: r.err}
}

// A RunFunc does the work. Its context carries the Run (FromContext) and is cancelled with cause ErrClaimLost when the
// claim is lost. Over an inbox (dedupstore.Transactor) it also carries the transaction, and the work is done again, in
// a new one, when the database refuses it because of others. Of the outcome that it returns, Result counts, and, with a
// nil error, Produced; what Kind it is follows from the error:
//
//   - nil: succeeded.
//   - Permanent: failed; all duplicates get it.
//   - NoEffect, RetryAfter or any other: released for another attempt, or failed when that was the last. Under a policy
//     that parks, only NoEffect is released, and all others leave the outcome unknown.
//   - Uncounted, another error with a method Uncounted() bool that returns true, or an error after the caller's context
//     was cancelled: as above, but the attempt does not count; cancellations for as many times as the policy has
//     attempts. The next one is at once, after Uncounted with the policy's backoff, and with RetryAfter when that says.
//
// What a nested guard's error wraps says nothing about this run: a handler decides by wrapping it.
type RunFunc func(ctx context.Context) (dedupstore.Outcome, error)

// Run runs fn unless the key has an outcome or another owner. A nil error means that there is an outcome, failures
// included, and that the message may be acknowledged once Result.Publication, if any, is done. Any other error means
// that it must not be:
//
//   - *BusyError: another owner is at it, or the retry is not due.
//   - *RetryError: this run failed and may be tried again.
//   - *ClaimLostError: another owner took over during the run.
//   - *MismatchError: the ID is known with other content.
//   - *UnpublishedError: the outcome is stored, what it produced is not published.
//   - *UnrecordedError: the handler ran, but the store could not be told.
//   - *StoreError: the store did not answer, or was not asked because it is down; the handler did not run.
//   - *dedupstore.InvalidError: the call itself is wrong.
//   - the cause of ctx: it ended before the handler ran. A claim that is on its way then is waited for, so that it can
//     be given back: a store that hangs delays this by a sixth of the lease, at most by some 5 s, if it heeds contexts.
//     A claim that was granted is tried to be given back for some 5 s, as before a *StoreError, and under a policy that
//     parks until its lease ends.
func (g *Guard) Run(ctx context.Context, call Call, fn RunFunc) (res Result, err error) {
	if g.policy.Shadow {
		err = g.shadow(ctx, &call, fn, &res)
		return res, err
	}
	if err := call.validate(); err != nil {
		return res, err
	}
	var began time.Time
	debug := g.log.Enabled(ctx, slog.LevelDebug)
	if debug {
		began = time.Now()
	}
	var answer dedupstore.Answer
	first, err := g.acquire(ctx, &call, &answer)
	if err == nil && answer.Status == dedupstore.AcquiredRun {
		err = g.run(ctx, &call, &answer, first, fn, &res)
	} else {
		err = g.otherwise(ctx, &call, &answer, first, err, fn, &res)
	}
	if debug && err == nil {
		g.logEnd(ctx, &call.Key, &answer, &res, time.Since(began))
	}
	return res, err
}

// logEnd says at level debug that a message was handled, or that a duplicate was not. Failures have lines of their own.
func (g *Guard) logEnd(
	ctx context.Context, key *dedupstore.Key, answer *dedupstore.Answer, res *Result, took time.Duration,
) {
	switch {
	case res.Duplicate:
		line := []any{"id", key.ID, "handler", key.Handler, "outcome", string(res.Outcome.Kind), "age", res.Age}
		if id := telemetry.TraceID(answer.Trace); id != "" {
			line = append(line, "first_trace_id", id)
		}
		g.log.DebugContext(ctx, "oncemill: duplicate suppressed", line...)
	case res.Outcome.Kind == dedupstore.Succeeded:
		g.log.DebugContext(ctx, "oncemill: handled", "id", key.ID, "handler", key.Handler, "attempt", res.Attempt,
			"took", took)
	}
}

//go:noinline
func (c *Call) validate() error {
	if strings.HasPrefix(c.Key.Handler, shadowPrefix) {
		return invalid("Call.Key.Handler",
			fmt.Sprintf("is %q: names that begin with %q are the engine's own", c.Key.Handler, shadowPrefix))
	}
	if err := c.Key.Validate(); err != nil {
		return err
	}
	if c.MaxWait < 0 {
		return invalid("Call.MaxWait", fmt.Sprintf("is %v, want at least 0", c.MaxWait))
	}
	return nil
}

// otherwise is what to do when no run is granted. It stands alone so that its frame is not on the stack of the others.
//
//go:noinline
func (g *Guard) otherwise(
	ctx context.Context, call *Call, answer *dedupstore.Answer, first time.Time, err error, fn RunFunc, res *Result,
) error {
	if err == nil {
		*res, err = g.answered(ctx, call, answer, first)
	} else if _, busy := err.(*BusyError); busy { //nolint:errorlint // never wrapped
		telemetry.LinkOriginal(ctx, call.Key.Group, call.Key.Handler, call.Key.ID, answer.Trace)
	} else if _, open := err.(*bypassError); open { //nolint:errorlint // never wrapped
		*res, err = g.bypass(ctx, *call, fn)
	}
	return err
}

// answered is what to do when the key has another owner or an outcome.
func (g *Guard) answered(ctx context.Context, call *Call, answer *dedupstore.Answer, first time.Time) (Result, error) {
	switch answer.Status {
	case dedupstore.AcquiredPublish:
		h := &holding{claim: answer.Claim, deadline: first.Add(answer.Claim.Lease)}
		if err := g.refresh(ctx, h, first); err != nil {
			return Result{}, err
		}
		res := Result{Outcome: answer.Outcome, Duplicate: true, Age: answer.Age, Fence: answer.Fence}
		return g.publish(ctx, *call, h, res, answer.Claim.Attempt)
	case dedupstore.Done:
		return Result{Outcome: answer.Outcome, Duplicate: true, Age: answer.Age, Fence: answer.Fence}, nil
	case dedupstore.Mismatch:
		return Result{}, &MismatchError{Key: call.Key}
	}
	return Result{}, &StoreError{Op: "claim", Key: call.Key, Err: fmt.Errorf("store answered %q", answer.Status)}
}

// run runs the handler under a heartbeat and settles what came of it.
func (g *Guard) run(
	ctx context.Context, call *Call, a *dedupstore.Answer, first time.Time, fn RunFunc, res *Result,
) error {
	h := new(holding)
	h.claim, h.deadline = a.Claim, first.Add(a.Claim.Lease)
	if err := g.start(ctx, h, first); err != nil {
		return err
	}
	if g.inbox != nil {
		return g.runInTx(ctx, call, h, fn, res)
	}
	outcome, err := g.underLease(ctx, h, func(ctx context.Context) (dedupstore.Outcome, error) {
		return g.protect(ctx, &h.claim, fn)
	})
	if err == nil && !h.isLost() && len(outcome.Produced) == 0 {
		return g.succeeded(ctx, h, &outcome, res)
	}
	return g.settled(ctx, call, h, &outcome, err, res)
}

// settled settles a run that failed, lost its claim or has outputs.
//
//go:noinline
func (g *Guard) settled(
	ctx context.Context, call *Call, h *holding, outcome *dedupstore.Outcome, err error, res *Result,
) error {
	if h.isLost() {
		return g.lost(ctx, h, err)
	}
	ended := Result{Fence: h.claim.Fence, Attempt: h.claim.Attempt, err: err}
	if err != nil {
		*res, err = g.failed(ctx, *call, h, ended, outcome.Result)
		return err
	}
	g.outcome(outcome, &ended)
	*res, err = g.produced(ctx, *call, h, ended, *outcome)
	return err
}

// start makes sure that the lease holds before a handler starts. A policy that parks also needs the run to be marked as
// started, which is what the first Extend does.
func (g *Guard) start(ctx context.Context, h *holding, first time.Time) error {
	var err error
	if g.policy.ExpiredLease == Park {
		err = g.renew(ctx, h)
	} else {
		err = g.refresh(ctx, h, first)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil && !h.isLost() { // the error may be ErrClaimLost of another claim, in whose handler this is
		g.giveBack(ctx, h)
	}
	return err
}

// refresh renews a lease of which long holds or lost replies may have used up more than a heartbeat would.
func (g *Guard) refresh(ctx context.Context, h *holding, first time.Time) error {
	if time.Since(first) < h.claim.Lease/3 {
		return nil
	}
	return g.renew(ctx, h)
}

func (g *Guard) renew(ctx context.Context, h *holding) error {
	h.deadline = time.Now().Add(h.claim.Lease)
	err := g.retry(ctx, h, func(ctx context.Context) error { return g.extend(ctx, h, h.claim.Lease) })
	switch {
	case err == nil:
		return nil
	case claimLost(ctx, err):
		return g.lost(ctx, h, nil)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	g.storeFailed(ctx, "extend", err)
	return &StoreError{Op: "extend", Key: h.claim.Key, Err: err}
}

// giveBack releases a claim whose handler did not start. A store that is restarted is back soon; else the lease ends by
// itself, which counts an attempt. Under a policy that parks that would make it unknown, as it may be marked as
// started.
func (g *Guard) giveBack(ctx context.Context, h *holding) {
	back := dedupstore.Release{Uncounted: true, Reason: "not started"}
	begun := time.Now()
	err := g.settleOnce(g.patience.of(ctx), h, back)
	if err != nil {
		back.Reason = "" // for which there may be no room
		ctx := context.WithoutCancel(ctx)
		if g.policy.ExpiredLease != Park {
			bounded, cancel := context.WithDeadline(ctx, begun.Add(giveBackTime))
			defer cancel()
			ctx = bounded
		}
		err = g.retryAfter(ctx, h, err, func(ctx context.Context) error { return g.settleOnce(ctx, h, back) })
	}
	if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) {
		g.log.WarnContext(ctx, "oncemill: claim not given back, its lease must end",
			"id", h.claim.Key.ID, "key", h.claim.Key.String(), "error", err)
	}
}

// giveBackTime is how long a caller waits for its claim to be given back, which is longer than a restart of a store
// takes.
const giveBackTime = 5 * time.Second

// underLease runs work with a heartbeat. Its context is cancelled when the claim is lost.
func (g *Guard) underLease(ctx context.Context, h *holding, work RunFunc) (dedupstore.Outcome, error) {
	var within contexts.Lazy
	within.Init(ctx)
	defer within.Cancel(nil)
	hb := g.beat(ctx, h, func() bool { h.cut(); within.Cancel(ErrClaimLost); return false })
	defer hb.stop()
	return work(&within)
}

// protect calls the handler, and turns a panic into an error, so that it counts as a failed attempt: also one in a
// method of the error that it returned, such as that of a nil pointer. Where it happened is in the log, as most callers
// have no use for the error.
func (g *Guard) protect(ctx context.Context, c *dedupstore.Claim, fn RunFunc) (o dedupstore.Outcome, err error) {
	defer func() {
		v := recover()
		if missing, ok := v.(txctx.NoTx); ok {
			o, err = dedupstore.Outcome{}, g.needsInbox(ctx, c, missing)
		} else if v != nil {
			p := &PanicError{Value: v, Stack: debug.Stack()}
			o, err = dedupstore.Outcome{}, p
			g.log.ErrorContext(ctx, "oncemill: handler panicked; the attempt has failed",
				"id", c.Key.ID, "key", c.Key.String(), "attempt", c.Attempt, "error", p, "stack", string(p.Stack))
		}
	}()
	if o, err = fn(withClaim(ctx, c)); err != nil {
		_, _, _ = reason(err), uncounted(err), errors.Is(err, errNotRepeated)
	}
	return o, err
}

// needsInbox makes the error of a handler that asked for a transaction where there is none: a mistake in how the
// program is put together, which no message is to fail for. It does not vouch for NoEffect: the handler may have done
// something before.
func (g *Guard) needsInbox(ctx context.Context, c *dedupstore.Claim, missing txctx.NoTx) error {
	err := fmt.Errorf("oncemill: the handler wants the transaction of an inbox, and its guard has none: "+
		"give consumer.New or oncemill.NewGuard store.Inbox(): %w", missing)
	g.noInbox.Do(func() {
		g.log.ErrorContext(ctx, "oncemill: handler wants a transaction of an inbox, and has none; its messages wait",
			"id", c.Key.ID, "key", c.Key.String(), "error", err)
	})
	return Uncounted(err)
}

// lost makes the error of a claim that another owner took over, and says so: the effect of a run may have happened.
func (g *Guard) lost(ctx context.Context, h *holding, handler error) error {
	g.meter.Loss(ctx, h.claim.Key.Group, h.claim.Key.Handler)
	g.log.WarnContext(ctx, "oncemill: claim lost; the outcome of this run, if any, was refused",
		"id", h.claim.Key.ID, "key", h.claim.Key.String(), "fence", h.claim.Fence, "error", handler)
	if handler == ErrClaimLost { //nolint:errorlint // the cause of its own context, and no more
		handler = nil
	}
	return &ClaimLostError{Handler: handler}
}

func newOwner() string { return ids.Token() }
