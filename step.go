package oncemill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/contexts"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/txctx"
)

// Step remembers the result of a part of a handler. The first run of the message that gets this far calls fn, and
// stores its result under the run's key and the step's name. Later attempts, in this process or another one, get that
// result without a call:
//
//	charge, err := oncemill.Step(ctx, "charge", func(ctx context.Context) (Charge, error) { … })
//	if err != nil {
//		return err
//	}
//	parcel, err := oncemill.Step(ctx, "parcel", func(ctx context.Context) (Parcel, error) { … })
//
// If a process dies between a step's effect and its record, that step runs again, and no other. In fn,
// FromContext(ctx).ID(name) is the same in each run of the step: use it as the idempotency key of calls to others.
//
// Only successes are remembered. An error of fn is returned, with the step's name before it, and steers the run as if
// the handler itself had returned it: Permanent, RetryAfter, Uncounted, NoEffect and the rest. The handler may also
// deal with it. Under a policy that parks, a step that crashed or erred without NoEffect or Permanent is unknown, and
// so is its message, until somebody decides about the step. NoEffect vouches for the whole run there, so do nothing
// outside of steps before it.
//
// A step that another run still holds is waited for, at most for Policy.Lease, and so is a store that does not answer.
// After that the error gives the run's attempt back, and so do a lost store and a busy step.
//
// Results are encoded as those of Do, with its limits: one that is too large is ErrNoResult for later attempts. A step
// is remembered for Policy.Window and, after that, for as long as the message's outcome would be. So a message that is
// still tried Window after a step may repeat it, and an ID that is used again after Window finds the steps of the
// message before: their results if the content is the same, else a permanent error.
//
// The name is part of the record's name, and of metrics: take few, of constants. It is not empty, has no "/step=", and
// fits with the handler's name into dedupstore.MaxScopePart bytes. A name that a run uses twice is an error. Steps may
// run at the same time, and hold other steps.
//
// Step is an error outside of a run, in a handler of batches, and in an inbox's handler, whose rollback would forget
// the step: see StepIn.
func Step[T any](ctx context.Context, name string, fn func(ctx context.Context) (T, error)) (T, error) {
	r, err := runAround(ctx)
	if err == nil && r.guard.inbox != nil {
		err = Uncounted(errInboxStep)
	}
	if err != nil {
		var zero T
		return zero, fmt.Errorf("step %q: %w", name, err)
	}
	return step(ctx, r, r.guard, name, fn)
}

// StepIn is Step with another guard, whose store keeps the step. In an inbox's handler give it a guard over the leased
// form of the store, or over any other: a rollback of the handler's transaction forgets nothing of that. It needs a
// connection of its own. With SQLite it also needs a database of its own, because the handler's transaction locks its
// database for others.
//
// The step has a run of its own under that guard's policy. It is remembered for at least as long as with Step.
func StepIn[T any](ctx context.Context, guard *Guard, name string, fn func(ctx context.Context) (T, error)) (T, error) {
	r, err := runAround(ctx)
	if err == nil && guard == nil {
		err = invalid("guard", "is nil")
	}
	if err != nil {
		var zero T
		return zero, fmt.Errorf("step %q: %w", name, err)
	}
	return step(ctx, r, guard, name, fn)
}

var (
	errInboxStep = errors.New("oncemill: Step in an inbox's handler: a rollback would forget it; use " +
		"StepIn(ctx, guard, name, fn), with a guard over a leased store")
	errNoRunStep = errors.New("oncemill: Step outside a guarded run: pass the context that the handler got")
	errBatchStep = errors.New("oncemill: Step in a handler of batches, which has no run of its own: " +
		"use a handler of single messages")
)

// A runContext carries what belongs to a run: its claim, and what its steps need.
type runContext struct {
	contexts.Lazy
	claim   *dedupstore.Claim
	guard   *Guard
	content dedupstore.Fingerprint // of the message, and so of its steps, which may outlive it; zero: not compared
	keep    time.Duration          // of a step, whose own steps live as long

	mu    sync.Mutex
	steps map[string]bool // the names that are used; made for the first
}

// begin makes it a child of a context.
func (r *runContext) begin(ctx context.Context, g *Guard, call *Call, claim *dedupstore.Claim) {
	r.Begin(ctx)
	r.of(g, call, claim)
}

// of says whose run it is.
func (r *runContext) of(g *Guard, call *Call, claim *dedupstore.Claim) {
	r.claim, r.guard, r.keep = claim, g, call.keep
	if g.policy.Mismatch != MismatchIgnore {
		r.content = call.Fingerprint
	}
}

// Value implements [context.Context].
func (r *runContext) Value(of any) any {
	switch {
	case txctx.IsKey[*dedupstore.Claim](of):
		return r.claim
	case txctx.IsKey[*runContext](of):
		return r
	}
	return r.Lazy.Value(of)
}

func runAround(ctx context.Context) (*runContext, error) {
	if r, ok := txctx.From[*runContext](ctx); ok {
		return r, nil
	}
	if _, ok := txctx.From[[]Run](ctx); ok {
		return nil, Uncounted(errBatchStep)
	}
	return nil, errNoRunStep
}

func step[T any](
	ctx context.Context, r *runContext, g *Guard, name string, fn func(ctx context.Context) (T, error),
) (T, error) {
	err := r.use(name)
	var v T
	if err == nil {
		call := Call{Key: r.claim.Key, Fingerprint: r.content, MaxWait: g.policy.Lease}
		call.keep = max(r.keep, r.guard.policy.keepsSteps())
		call.Key.Handler = ids.StepHandler(call.Key.Handler, name)
		v, err = Do(ctx, g, call, fn)
	}
	if err != nil {
		return v, r.steers(name, err)
	}
	return v, nil
}

// use notes that the run has a step of a name.
func (r *runContext) use(name string) error {
	if !ids.IsStep(name) {
		return invalid("name", fmt.Sprintf("is %q: it must not be empty, or have %q", name, ids.StepMark))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.steps[name] {
		return invalid("name", fmt.Sprintf("is %q, which this run has used before: it would get the other's "+
			"result", name))
	}
	if r.steps == nil {
		r.steps = map[string]bool{}
	}
	r.steps[name] = true
	return nil
}

// keepsSteps is how long steps are remembered: the message may end Window after them, and then be run again for as long
// as its failure is kept.
func (p *Policy) keepsSteps() time.Duration {
	return min(p.Window+max(p.Window, p.FailureWindow), longestWindow)
}

// steers makes the error of a step say to the run around it what it would say if the handler had returned it.
func (r *runContext) steers(name string, err error) error {
	permanent := false
	if e, answered := err.(*Error); answered { //nolint:errorlint // of Do, never wrapped
		switch e.Status {
		case StatusDone: // no retry mends it; but if the policy parks, not known is not known
			permanent = e.Handler == nil &&
				(e.Outcome.Kind != dedupstore.Unknown || r.guard.policy.ExpiredLease != Park)
			err = cmp.Or(e.Handler, err)
		case StatusRetry:
			err = e.Handler
		case StatusMismatch: // the step is of a message that had this ID before
			permanent = true
		case StatusBusy, StatusNotDue:
			err = RetryAfter(e.Wait, Uncounted(err))
		case StatusStoreDown:
			err = Uncounted(err)
		}
	}
	err = fmt.Errorf("step %q: %w", name, err)
	if permanent {
		return Permanent(err)
	}
	return err
}

// ofStep is what becomes of a step that returned an error: its run decides about both, and so nothing is remembered but
// that nobody knows.
func (v verdict) ofStep() verdict {
	switch {
	case v.release != nil:
		return verdict{release: &dedupstore.Release{Reason: v.release.Reason}}
	case v.outcome.Kind == dedupstore.Unknown:
		return v
	}
	return verdict{release: &dedupstore.Release{Reason: v.outcome.Reason}}
}

// stepAttempts leaves the counting of attempts to the run around a step.
const stepAttempts = 1 << 30
