package oncemill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// truncate cuts a result that is too long to be stored.
func (g *Guard) truncate(o *dedupstore.Outcome) {
	if limit := g.policy.MaxResultBytes; len(o.Result) > limit {
		o.Result, o.Truncated = o.Result[:limit], true
	}
}

// deadLetter asks the caller for the dead letter of a failure. One that no store takes is left out, and so is that of a
// panic: without its outcome the message would run again and again.
func (g *Guard) deadLetter(
	ctx context.Context, call *Call, o dedupstore.Outcome, attempt int, fence uint64,
) []dedupstore.Produced {
	if call.DeadLetter == nil {
		return nil
	}
	err := func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		o.Produced = call.DeadLetter(o, attempt, fence)
		return dedupstore.ValidateSettlement(dedupstore.Finish{Outcome: o, Retention: g.window(call, o)})
	}()
	if err != nil {
		g.log.ErrorContext(ctx, "oncemill: dead letter is invalid and left out",
			"id", call.Key.ID, "key", call.Key.String(), "error", err)
		return nil
	}
	return o.Produced
}

// withheld is a failure without the bytes of its dead letter.
func withheld(f dedupstore.Finish) dedupstore.Finish {
	f.Outcome.Produced, f.Withheld = nil, true
	return f
}

func (g *Guard) window(call *Call, o dedupstore.Outcome) time.Duration {
	if o.Kind == dedupstore.Succeeded {
		return max(g.policy.Window, call.keep)
	}
	return max(g.policy.FailureWindow, call.keep)
}

// settle does what is left to do, and returns an ending with nothing left.
func (r *run) settle(ctx context.Context, e *ending) *ending {
	switch e.left {
	case giveBack:
		r.guard.giveBack(ctx, &r.lease)
	case store:
		sent := time.Now()
		return r.stored(ctx, e, sent, r.guard.settle(ctx, &r.lease, e.settlement))
	case publish:
		return r.publish(ctx, e)
	case publishFirst:
		return r.publishFirst(ctx, e)
	}
	return e
}

// stored goes on with an ending whose settlement is stored, or could not be.
func (r *run) stored(ctx context.Context, e *ending, sent time.Time, err error) *ending {
	g, l := r.guard, &r.lease
	switch {
	case err == nil:
	case is[*crowdedError](err):
		g.storeFailed(ctx, "settle", err)
		g.log.WarnContext(ctx, "oncemill: the store has no room for produced messages; they are published first, and "+
			"a crash before that runs the handler again",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
		return r.publishUnstored(ctx, e)
	default:
		return r.unfinished(ctx, e.res.Handler, err)
	}
	if e.res.Status != StatusDone {
		return e
	}
	g.countEnd(ctx, &r.call.Key, &e.res.Outcome)
	if len(e.res.Outcome.Produced) == 0 {
		return e
	}
	e.sent = sent
	return r.publish(ctx, e)
}

// end leaves the run's turn and returns its answer.
func (r *run) end(ctx context.Context, e *ending) (Result, error) {
	r.leaveTurn()
	r.log(ctx, e)
	return e.answer(&r.call.Key)
}

// answer is what a caller gets.
func (e *ending) answer(key *dedupstore.Key) (Result, error) {
	if e.err != nil {
		return e.res, e.err
	}
	if e.res.key = key; e.res.Status != StatusDone {
		return e.res, e.res.error()
	}
	return e.res, nil
}

// log says at level debug that a message was handled, or that a duplicate was not. Failures have lines of their own.
func (r *run) log(ctx context.Context, e *ending) {
	g, key, res := r.guard, &r.call.Key, &e.res
	if e.err != nil || res.Status != StatusDone || g.policy.Shadow || !g.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	switch {
	case res.Duplicate:
		line := []any{"id", key.ID, "handler", key.Handler, "outcome", string(res.Outcome.Kind), "age", res.Age}
		if id := telemetry.TraceID(r.last.Answer.Trace); id != "" {
			line = append(line, "first_trace_id", id)
		}
		g.log.DebugContext(ctx, "oncemill: duplicate suppressed", line...)
	case res.Outcome.Kind == dedupstore.Succeeded:
		g.log.DebugContext(ctx, "oncemill: handled", "id", key.ID, "handler", key.Handler, "attempt", res.Attempt,
			"took", res.took)
	}
}

// countEnd counts an outcome that has been stored just now, if it is no success: those are counted as runs.
func (g *Guard) countEnd(ctx context.Context, key *dedupstore.Key, o *dedupstore.Outcome) {
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

// unfinished is the ending of a run whose outcome could not be stored.
func (r *run) unfinished(ctx context.Context, handler, err error) *ending {
	if errors.Is(err, dedupstore.ErrClaimLost) {
		return r.lost(ctx, handler)
	}
	return r.ends(ending{res: Result{Status: StatusUnrecorded, Handler: handler, Err: err}})
}

// giveBack releases a claim whose handler did not start. A store that restarts is back soon. Otherwise the lease ends,
// which counts an attempt. Under a policy that parks it would also make the outcome unknown, because the run may be
// marked as started.
func (g *Guard) giveBack(ctx context.Context, l *lease) {
	back := dedupstore.Release{Uncounted: true, Reason: "not started"}
	begun := time.Now()
	err := g.settleOnce(ctx, l, back)
	if err != nil {
		back.Reason = "" // for which there may be no room
		ctx := context.WithoutCancel(ctx)
		if g.policy.ExpiredLease != Park {
			bounded, cancel := context.WithDeadline(ctx, begun.Add(giveBackTime))
			defer cancel()
			ctx = bounded
		}
		err = g.retry(ctx, l, err, func() error { return g.settleOnce(ctx, l, back) })
	}
	if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) {
		g.log.WarnContext(ctx, "oncemill: claim not given back; its message comes again when the lease ends",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
	}
}

// giveBackTime is how long a caller waits for its claim to be given back, which is longer than a restart of a store
// takes.
const giveBackTime = 5 * time.Second

// settle writes a settlement, detached from the delivery, whose context shutdown cancels first. It tries again until
// the lease ends, at least once, and then says loudly that an outcome is lost.
func (g *Guard) settle(ctx context.Context, l *lease, s dedupstore.Settlement) error {
	err := g.settleOnce(ctx, l, s)
	if err != nil { // rare
		err = g.settleAgain(context.WithoutCancel(ctx), l, s, err)
	}
	return err
}

func (g *Guard) settleOnce(ctx context.Context, l *lease, s dedupstore.Settlement) error {
	return *l.shard.settles.Do(ctx, dedupstore.Settling{Claim: *l.claim, Settlement: s})
}

// settleAgain goes on with a settlement of which the first try failed.
func (g *Guard) settleAgain(ctx context.Context, l *lease, s dedupstore.Settlement, err error) error {
	s, err = g.lean(ctx, l, s, err)
	err = g.retry(ctx, l, err, func() error {
		err := g.settleOnce(ctx, l, s)
		s, err = g.lean(ctx, l, s, err)
		return err
	})
	if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) && !is[*crowdedError](err) {
		g.storeFailed(ctx, "settle", err)
		g.log.ErrorContext(ctx, "oncemill: settlement could not be stored; unless it is published, a redelivery may "+
			"run the handler again",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "fence", l.claim.Fence,
			"settlement", strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", s), "dedupstore.")), "error", err)
	}
	return err
}

// crowdedError says that the store has no room for an outcome because of what the run produced, which can be published
// first.
type crowdedError struct{ error }

// Unwrap returns the store's error.
func (e *crowdedError) Unwrap() error { return e.error }

// lean takes everything optional out of a settlement that found no room: a run that is not settled is made again, and
// counts.
func (g *Guard) lean(
	ctx context.Context, l *lease, s dedupstore.Settlement, err error,
) (dedupstore.Settlement, error) {
	if !errors.Is(err, dedupstore.ErrFull) {
		return s, err
	}
	switch s := s.(type) {
	case dedupstore.Release:
		s.Reason = ""
		return s, err
	case dedupstore.Finish:
		publishes := len(s.Outcome.Produced) > 0 && !s.Published
		switch {
		case publishes && s.Outcome.Kind != dedupstore.Succeeded:
			return withheld(s), err
		case publishes && g.inbox == nil:
			return s, &crowdedError{err}
		case len(s.Outcome.Result) == 0:
			return s, err
		}
		g.storeFailed(ctx, "settle", err)
		g.log.WarnContext(ctx, "oncemill: the store has no room for a result; the outcome is stored without it, and "+
			"duplicates get none",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
		s.Outcome.Result, s.Outcome.Truncated = nil, true
		return s, err
	}
	return s, err
}

// retry repeats an operation of the store, which ended in err, until it works, is refused, or the lease ends.
func (g *Guard) retry(ctx context.Context, l *lease, err error, operation func() error) error {
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		if err == nil || errors.Is(err, dedupstore.ErrClaimLost) || is[*dedupstore.InvalidError](err) ||
			is[*dedupstore.RecordError](err) || is[*crowdedError](err) {
			return err
		}
		left := time.Until(l.ends())
		if pause > left {
			pause = left - left/8 // an outage may end before the lease does
		}
		if pause < minPoll || !sleepUntil(ctx, nil, pace.JitterOf(ctx, pause), nil) {
			return err
		}
		err = operation()
	}
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
