package oncemill

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/marks"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// bypass runs the handler without a claim because the store does not answer and the policy says so.
func (r *run) bypass(ctx context.Context) *ending {
	g, call := r.guard, r.call
	g.tally(ctx, &call.Key, &telemetry.Answer{Outcome: telemetry.Bypassed, Bypass: telemetry.StoreDown})
	claim := &dedupstore.Claim{Key: call.Key}
	o, err := r.protect(g.withClaim(r.withTurn(ctx), call, claim), claim)
	if err != nil {
		wait := g.policy.Backoff.delay(1)
		if after, delayed := mark[*marks.RetryAfter](err); delayed {
			wait = after.Delay
		}
		return r.ends(ending{res: Result{
			Status: StatusRetry, Bypassed: true, Wait: wait, Uncounted: uncounted(err), Handler: err,
		}})
	}
	o.Kind = dedupstore.Succeeded
	res := Result{Status: StatusDone, Outcome: o, Bypassed: true}
	switch {
	case len(o.Produced) == 0:
	case call.Publish == nil:
		res.Publication = unrecordedPublication(o.Produced)
	default:
		if err := call.Publish(ctx, o.Produced); err != nil {
			return r.ends(ending{res: Result{Status: StatusUnpublished, Wait: g.policy.Backoff.delay(1), Err: err}})
		}
	}
	return r.ends(ending{res: res})
}

func unrecordedPublication(produced []dedupstore.Produced) *Publication {
	return &Publication{
		produced: produced,
		done:     func() error { return nil },
		abandon:  func() time.Duration { return 0 },
	}
}

// shadowPrefix begins the handler names under which shadow mode counts, so that it shares no record with a guard that
// works.
const shadowPrefix = "~"

// shadow runs every call and counts what a guard would have done. Whatever happens at the store, the handler runs once,
// with the caller's context, and its error is returned as it is.
func (r *run) shadow(ctx context.Context) *ending {
	g, call := r.guard, r.call
	key := call.Key
	key.Handler = shadowPrefix + key.Handler
	settle := g.shadowClaim(ctx, call, key)
	e := r.ends(ending{err: errors.New("the handler did not return")})
	defer func() { settle(e.err) }()
	e.res = Result{Status: StatusDone, Bypassed: true}
	e.res.Outcome, e.err = r.owner.handle(g.withClaim(ctx, call, &dedupstore.Claim{Key: call.Key}), r)
	e.res.Outcome.Kind = dedupstore.Succeeded
	return e
}

// shadowClaim claims under the shadow's key, counts the answer, and returns how to end the claim.
func (g *Guard) shadowClaim(ctx context.Context, call *Call, key dedupstore.Key) func(handler error) {
	request := g.request(ctx, call, newToken())
	request.Key, request.Rerun, request.ParkExpired, request.MaxAttempts = key, 0, false, maxShadowAttempts
	sent := time.Now()
	shard := g.shards.of(ctx, &key)
	var answer dedupstore.Answer
	patient, stop := context.WithTimeout(ctx, shadowTimeout) // while failures count, claims wait for each other
	defer stop()
	err := shard.breaker.claim(patient, &key, func(together bool) (err error) {
		quick, cancel := context.WithTimeout(context.WithoutCancel(ctx), shadowTimeout)
		defer cancel()
		err = shielded(func() (err error) {
			answer, err = dedupstore.ClaimOne(quick, g.store, request)
			return err
		})
		if err != nil {
			g.meter.StoreError(ctx, "claim", "shadow", storeFailure(err))
			if together {
				shard.breaker.report(&key, sent, err)
			}
		}
		return err
	})
	if err != nil {
		return func(error) {}
	}
	g.meter.Shadow(ctx, call.Key.Group, call.Key.Handler, outcomeOf(&answer))
	if answer.Status != dedupstore.AcquiredRun {
		return func(error) {}
	}
	l := &lease{started: true}
	l.granted(&answer.Claim, shard, sent)
	g.heartbeat.add(l)
	return func(handler error) {
		g.heartbeat.remove(l)
		var s dedupstore.Settlement = dedupstore.Finish{
			Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: g.policy.Window,
		}
		if handler != nil {
			s = dedupstore.Release{Uncounted: true}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shadowTimeout)
		defer cancel()
		err := shielded(func() error { return dedupstore.SettleOne(ctx, g.store, answer.Claim, s) })
		if err != nil {
			g.meter.StoreError(ctx, "settle", "shadow", storeFailure(err))
		}
	}
}

// shielded makes an error of a panic of the store, such as one in a hook of its client.
func shielded(ask func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &batch.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return ask()
}

// shadowTimeout is how long shadow mode waits for the store, which must not delay what it shadows.
const shadowTimeout = 25 * time.Millisecond

// maxShadowAttempts keeps shadow claims from being exhausted: they end nothing.
const maxShadowAttempts = 1 << 30
