package oncemill

import (
	"context"
	"errors"
	"fmt"
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

// finish stores an outcome, then publishes what it produced.
func (t *Ticket) finish(ctx context.Context, res Result, finish dedupstore.Finish) (Result, error) {
	g, l := t.guard, &t.lease
	sent := time.Now()
	err := g.settle(ctx, l, finish)
	if is[*crowdedError](err) {
		g.storeFailed(ctx, "settle", err)
		g.log.WarnContext(ctx, "oncemill: the store has no room for produced messages; they are published first, and "+
			"a crash before that runs the handler again",
			"id", l.claim.Key.ID, "key", l.claim.Key.String(), "error", err)
		return t.publishUnstored(ctx, res, finish)
	}
	if err != nil {
		return Result{}, g.unfinished(ctx, l, res.err, err)
	}
	g.countEnd(ctx, &l.claim.Key, &finish.Outcome)
	return t.publishStored(ctx, res, sent)
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

// unfinished makes the error of a run whose outcome could not be stored.
func (g *Guard) unfinished(ctx context.Context, l *lease, handler, err error) error {
	if errors.Is(err, dedupstore.ErrClaimLost) {
		return g.lost(ctx, l, handler)
	}
	return &UnrecordedError{Key: l.claim.Key, Handler: handler, Err: err}
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
	return *l.part.settles.Do(ctx, dedupstore.Settling{Claim: *l.claim, Settlement: s})
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
