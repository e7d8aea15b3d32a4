package oncemill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// outcome makes the outcome of a run that returned no error: as it is to be stored, and as the caller gets it.
func (g *Guard) outcome(o *dedupstore.Outcome, res *Result) {
	o.Kind, o.Reason, o.Exhausted = dedupstore.Succeeded, "", false
	res.Outcome = *o
	g.truncate(o)
}

// truncate cuts a result that is too long to be stored.
func (g *Guard) truncate(o *dedupstore.Outcome) {
	if limit := g.policy.MaxResultBytes; len(o.Result) > limit {
		o.Result, o.Truncated = o.Result[:limit], true
	}
}

// succeeded stores the outcome of a run that returned no error, and produced nothing.
func (g *Guard) succeeded(ctx context.Context, h *holding, o *dedupstore.Outcome, res *Result) error {
	g.outcome(o, res)
	if err := g.settle(ctx, h, dedupstore.Finish{Outcome: *o, Retention: g.policy.Window}); err != nil {
		*res = Result{}
		return g.unfinished(ctx, h, nil, err)
	}
	res.Fence, res.Attempt = h.claim.Fence, h.claim.Attempt
	return nil
}

// produced is succeeded for a run with outputs.
func (g *Guard) produced(
	ctx context.Context, call Call, h *holding, res Result, stored dedupstore.Outcome,
) (Result, error) {
	finish := dedupstore.Finish{Outcome: stored, Retention: g.policy.Window}
	if err := dedupstore.ValidateSettlement(finish); err != nil {
		// The effect has happened, and running it again would not make these outputs valid.
		res.err = Permanent(fmt.Errorf("the handler's outputs cannot be stored: %w", err))
		return g.failed(ctx, call, h, res, stored.Result)
	}
	if size(stored.Produced) > g.policy.MaxProducedBytes {
		return g.publishFirst(ctx, call, h, res, stored)
	}
	return g.finish(ctx, call, h, res, stored)
}

// failed stores or releases a run that returned an error, and perhaps a result beside it.
func (g *Guard) failed(ctx context.Context, call Call, h *holding, res Result, result []byte) (Result, error) {
	err := res.err
	// Adapters cancel deliveries for reasons of their own, too: a handler that is always too slow for one must not run
	// for ever. So does the guard when a lease cannot be renewed.
	cancelled := (errors.Is(ctx.Err(), context.Canceled) || h.wasCut()) && h.claim.Returned < g.policy.MaxAttempts
	_, conflict := mark[*dedupstore.ConflictError](err)
	endless := conflict && h.claim.Returned >= g.policy.MaxAttempts
	interrupted := uncounted(err) && !endless || cancelled
	_, permanent := mark[*PermanentError](err)
	_, proof := mark[*noEffectError](err)
	parks := g.policy.ExpiredLease == Park && !proof
	last := h.claim.Attempt >= g.policy.MaxAttempts
	o := dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason(err), Result: result}
	switch {
	case permanent:
	case parks:
		o.Kind = dedupstore.Unknown
	case last && !interrupted:
		o.Exhausted = true
	default:
		return Result{}, g.release(ctx, h, err, interrupted)
	}
	return g.conclude(ctx, call, h, res, o)
}

// parked stores that a run may have had effects, and must not be made again.
func (g *Guard) parked(ctx context.Context, call Call, h *holding, res Result) (Result, error) {
	return g.conclude(ctx, call, h, res, dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: reason(res.err)})
}

// conclude stores an outcome that is no success, with its dead letter.
func (g *Guard) conclude(ctx context.Context, call Call, h *holding, res Result, o dedupstore.Outcome) (Result, error) {
	o.Produced = g.deadLetter(ctx, call, o, h.claim.Attempt, h.claim.Fence)
	res.Outcome = o
	g.truncate(&o)
	if g.inbox == nil && size(o.Produced) > g.policy.MaxProducedBytes { // over an inbox it says that there is no effect
		return g.publishFirst(ctx, call, h, res, o)
	}
	return g.finish(ctx, call, h, res, o)
}

// deadLetter asks the caller for the dead letter of a failure. One that no store takes is left out: without its outcome
// the message would run again and again.
func (g *Guard) deadLetter(
	ctx context.Context, call Call, o dedupstore.Outcome, attempt int, fence uint64,
) []dedupstore.Produced {
	if call.DeadLetter == nil {
		return nil
	}
	o.Produced = call.DeadLetter(o, attempt, fence)
	if err := dedupstore.ValidateSettlement(dedupstore.Finish{Outcome: o, Retention: g.window(o)}); err != nil {
		g.log.ErrorContext(ctx, "oncemill: dead letter is invalid and left out",
			"id", call.Key.ID, "key", call.Key.String(), "error", err)
		return nil
	}
	return o.Produced
}

// longestDelay is the longest delay of a handler's own: stores and brokers take no time that there is.
const longestDelay = 365 * 24 * time.Hour

// release gives the key back for another attempt. It always returns an error.
func (g *Guard) release(ctx context.Context, h *holding, handler error, interrupted bool) error {
	retry := &RetryError{Attempt: h.claim.Attempt, Uncounted: interrupted, Err: handler}
	retry.Delay = g.policy.Backoff.delay(h.claim.Attempt)
	if interrupted {
		retry.Delay = 0
		_, conflict := mark[*dedupstore.ConflictError](handler)
		if _, outage := mark[*uncountedError](handler); conflict || outage { // the others may still be at it, or away
			retry.Delay = g.policy.Backoff.delay(h.claim.Returned + 1)
		}
	}
	if after, ok := mark[*RetryAfterError](handler); ok {
		retry.Delay = min(max(after.Delay, 0), longestDelay)
	}
	err := g.settle(ctx, h, dedupstore.Release{Delay: retry.Delay, Reason: reason(handler), Uncounted: interrupted})
	switch {
	case err == nil:
		return retry
	case errors.Is(err, dedupstore.ErrClaimLost):
		return g.lost(ctx, h, handler)
	}
	return &UnrecordedError{Key: h.claim.Key, Handler: handler, Err: err}
}

// finish stores the outcome, then publishes what it produced.
func (g *Guard) finish(ctx context.Context, call Call, h *holding, res Result, o dedupstore.Outcome) (Result, error) {
	sent := time.Now()
	finish := dedupstore.Finish{Outcome: o, Retention: g.window(o)}
	err := g.settleOnce(g.patience.of(ctx), h, finish)
	if err != nil { // nearly never
		err = g.settleAgain(context.WithoutCancel(ctx), h, finish, err)
	}
	if is[*crowdedError](err) {
		g.storeFailed(ctx, "settle", err)
		g.log.WarnContext(ctx, "oncemill: the store has no room for produced messages; they are published first, and "+
			"a crash before that runs the handler again",
			"id", h.claim.Key.ID, "key", h.claim.Key.String(), "error", err)
		if time.Since(sent) >= h.claim.Lease/3 { // the first heartbeat may be too late
			_ = g.extendBefore(context.WithoutCancel(ctx), h, h.until()) // it tries again
		}
		if h.isLost() {
			return Result{}, g.lost(ctx, h, res.err)
		}
		o.Produced = dedupstore.Stubs(o.Produced)
		published := dedupstore.Finish{Outcome: o, Retention: finish.Retention, Published: true}
		return g.publishThen(ctx, call, h, res, published)
	}
	if err != nil {
		return Result{}, g.unfinished(ctx, h, res.err, err)
	}
	g.ended(ctx, &h.claim.Key, &o)
	return g.publishStored(ctx, call, h, res, sent)
}

// ended counts an outcome that has been stored just now, if it is no success: those are counted as runs.
func (g *Guard) ended(ctx context.Context, key *dedupstore.Key, o *dedupstore.Outcome) {
	end := telemetry.EndedPermanently
	switch {
	case o.Kind == dedupstore.Succeeded:
		return
	case o.Kind == dedupstore.Unknown:
		end = telemetry.EndedUnknown
	case o.Exhausted:
		end = telemetry.EndedExhausted
	}
	g.meter.Ended(ctx, key.Group, key.Handler, key.ID, end)
}

// publishStored publishes what an outcome holds that was sent to the store at a time.
func (g *Guard) publishStored(ctx context.Context, call Call, h *holding, res Result, sent time.Time) (Result, error) {
	if len(res.Outcome.Produced) == 0 {
		return res, nil
	}
	h.deadline = sent.Add(h.claim.Lease) // the publish step has a lease of its own
	if err := g.refresh(ctx, h, sent); errors.Is(err, ErrClaimLost) {
		return Result{}, err
	} else if err != nil {
		return Result{}, &UnpublishedError{Delay: h.claim.Lease, Err: err}
	}
	return g.publish(ctx, call, h, res, h.claim.Attempt)
}

// unfinished makes the error of a run whose outcome could not be stored.
func (g *Guard) unfinished(ctx context.Context, h *holding, handler, err error) error {
	if errors.Is(err, dedupstore.ErrClaimLost) {
		return g.lost(ctx, h, handler)
	}
	return &UnrecordedError{Key: h.claim.Key, Handler: handler, Err: err}
}

func (g *Guard) window(o dedupstore.Outcome) time.Duration {
	if o.Kind == dedupstore.Succeeded {
		return g.policy.Window
	}
	return g.policy.FailureWindow
}

// settle writes a settlement, detached from the delivery, whose context shutdown cancels first. It tries again until
// the lease ends, at least once, and then says loudly that an outcome is lost.
func (g *Guard) settle(ctx context.Context, h *holding, s dedupstore.Settlement) error {
	err := g.settleOnce(g.patience.of(ctx), h, s)
	if err != nil { // nearly never
		err = g.settleAgain(context.WithoutCancel(ctx), h, s, err)
	}
	return err
}

// settleOnce tries once. Without the outcome the effect would be made again, so that a panic is an error, too, which is
// tried again.
func (g *Guard) settleOnce(ctx context.Context, h *holding, s dedupstore.Settlement) (err error) {
	defer calm(&err)
	return dedupstore.SettleOne(ctx, g.store, h.claim, s)
}

// settleAgain goes on with a settlement of which the first attempt failed.
//
//go:noinline
func (g *Guard) settleAgain(ctx context.Context, h *holding, s dedupstore.Settlement, err error) error {
	s, err = g.lean(ctx, h, s, err)
	err = g.retryAfter(ctx, h, err, func(ctx context.Context) error {
		err := g.settleOnce(ctx, h, s)
		s, err = g.lean(ctx, h, s, err)
		return err
	})
	if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) && !is[*crowdedError](err) {
		g.storeFailed(ctx, "settle", err)
		g.log.ErrorContext(ctx, "oncemill: settlement could not be stored; unless it is Published, a redelivery may "+
			"run the handler again",
			"id", h.claim.Key.ID, "key", h.claim.Key.String(), "fence", h.claim.Fence,
			"settlement", fmt.Sprintf("%T", s), "error", err)
	}
	return err
}

// crowdedError says that the store has no room for an outcome because of what the run produced, which can be published
// first.
type crowdedError struct{ error }

// Unwrap returns what the store said.
func (e *crowdedError) Unwrap() error { return e.error }

// lean leaves out of a settlement that found no room what can be done without: a run that is not settled is made again,
// and counts.
func (g *Guard) lean(
	ctx context.Context, h *holding, s dedupstore.Settlement, err error,
) (dedupstore.Settlement, error) {
	if !errors.Is(err, dedupstore.ErrFull) {
		return s, err
	}
	switch s := s.(type) {
	case dedupstore.Release:
		s.Reason = ""
		return s, err
	case dedupstore.Finish:
		switch {
		case len(s.Outcome.Produced) > 0 && !s.Published && g.inbox == nil:
			return s, &crowdedError{err}
		case len(s.Outcome.Result) == 0:
			return s, err
		}
		g.storeFailed(ctx, "settle", err)
		g.log.WarnContext(ctx, "oncemill: the store has no room for a result; the outcome is stored without it, and "+
			"duplicates get none",
			"id", h.claim.Key.ID, "key", h.claim.Key.String(), "error", err)
		s.Outcome.Result, s.Outcome.Truncated = nil, true
		return s, err
	}
	return s, err
}

// retry repeats an operation of the store until it works, is refused, or the lease ends.
func (g *Guard) retry(ctx context.Context, h *holding, operation func(context.Context) error) error {
	return g.retryAfter(ctx, h, g.attempt(ctx, operation), operation)
}

// retryAfter is retry after a first attempt that ended in err.
func (g *Guard) retryAfter(ctx context.Context, h *holding, err error, operation func(context.Context) error) error {
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		if err == nil || errors.Is(err, dedupstore.ErrClaimLost) || is[*dedupstore.InvalidError](err) ||
			is[*dedupstore.RecordError](err) || is[*crowdedError](err) {
			return err
		}
		left := time.Until(h.until())
		if pause > left {
			pause = left - left/8 // an outage may end before the lease does
		}
		if pause < minPoll || !sleep(ctx, pause) {
			return err
		}
		err = g.attempt(ctx, operation)
	}
}

// attempt bounds one operation of the store. A context that does not end otherwise has a cheap bound.
func (g *Guard) attempt(ctx context.Context, operation func(context.Context) error) error {
	if ctx.Done() == nil {
		return operation(g.patience.of(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, g.patience.timeout)
	defer cancel()
	return operation(ctx)
}

// reason is an error's text as stores and headers can carry it: valid UTF-8 on one line, of bounded length.
func reason(err error) string {
	s := strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(err.Error(), "\uFFFD")))
	if len(s) > dedupstore.MaxReason {
		s = strings.ToValidUTF8(s[:dedupstore.MaxReason], "")
	}
	return s
}

// size is how many bytes of a record the produced messages take.
func size(produced []dedupstore.Produced) int {
	n := 0
	for _, p := range produced {
		n += len(p.Payload)
		for k, v := range p.Header {
			n += len(k) + len(v)
		}
	}
	return n
}
