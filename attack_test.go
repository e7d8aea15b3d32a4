package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

func TestIrreversible_ProofOfANestedRunIsNoProof(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := irreversible(t, newStore(t))
		nested := &oncemill.Error{Result: oncemill.Result{
			Status: oncemill.StatusRetry, Handler: oncemill.NoEffect(errors.New("mail server refused")),
		}}
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, fmt.Errorf("charged, but: %w", nested)
		}}
		for range 3 {
			res, err := g.Run(t.Context(), call("m1"), h.run)
			if err != nil || res.Outcome.Kind != dedupstore.Unknown {
				t.Errorf("%+v, %v; want unknown", res, err)
			}
			time.Sleep(time.Minute)
		}
		h.want(t, 1)
	})
}

func TestGuard_MarkersAreFoundThroughWrappersAndJoins(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		permanent := errors.Join(errors.New("and"), fmt.Errorf("wrapped: %w", oncemill.Permanent(errors.New("no"))))
		res, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, permanent })
		if err != nil || res.Outcome.Kind != dedupstore.Failed || res.Outcome.Exhausted {
			t.Errorf("%+v, %v; want a permanent failure", res, err)
		}
	})
}

func TestGuard_InvalidDeadLetterDoesNotRepeatTheEffect(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Permanent(errors.New("no"))
		}}
		c := call("m1")
		c.DeadLetter = func(dedupstore.Outcome, int, uint64) []dedupstore.Produced {
			return []dedupstore.Produced{{ID: "\x00"}}
		}
		for range 3 {
			if res, err := g.Run(t.Context(), c, h.run); err != nil || res.Failure() == nil {
				t.Errorf("%+v, %v; want the failure stored", res, err)
			}
			time.Sleep(time.Minute)
		}
		h.want(t, 1)
	})
}

func TestGuard_SlowFinishDoesNotEndThePublishStep(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		var refuseUntil time.Time
		store.settle = func(_ dedupstore.Settlement, apply func() error) error {
			if time.Now().Before(refuseUntil) {
				return errDown
			}
			return apply()
		}
		h := counter{then: func(ctx context.Context, run int) (dedupstore.Outcome, error) {
			refuseUntil = time.Now().Add(25 * time.Second) // of a lease of 30 s
			return producing("o1")(ctx, run)
		}}
		p := publisher{takes: 2 * time.Minute}
		c := call("m1")
		c.Publish = func(ctx context.Context, m []dedupstore.Produced) error {
			err := p.publish(ctx, m)
			if ctx.Err() != nil {
				t.Errorf("the publish step was cancelled: %v", context.Cause(ctx))
			}
			return err
		}
		if _, err := g.Run(t.Context(), c, h.run); err != nil {
			t.Error(err)
		}
		p.want(t, "o1")
	})
}

func TestGuard_PublicationOutlivesAStoreThatWasAway(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		h := counter{then: producing("o1")}
		first, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || first.Publication == nil {
			t.Fatal(first, err)
		}
		store.down.Store(true)
		time.Sleep(5 * time.Minute)
		store.down.Store(false)
		time.Sleep(time.Minute)
		_, err = g.Run(t.Context(), call("m1"), h.run)
		answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue) // still held: nobody publishes beside it
		if err := first.Publication.Done(); err != nil {
			t.Error(err)
		}
	})
}

func TestGuard_HeartbeatSurvivesShutdownWhileTheHandlerFinishes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		ctx, shutdown := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := g.Run(ctx, call("m1"), func(context.Context) (dedupstore.Outcome, error) {
				time.Sleep(5 * time.Minute) // ignores the shutdown
				return dedupstore.Outcome{}, nil
			})
			done <- err
		}()
		synctest.Wait()
		shutdown()
		time.Sleep(4 * time.Minute)
		_, err := g.Run(t.Context(), call("m1"), nil)
		answertest.Want(t, err, oncemill.StatusBusy, oncemill.StatusNotDue)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestGuard_HangingStoreHoldsNoOperationForEver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, hanging{}, oncemill.Policy{})
		start := time.Now()
		_, err := g.Run(t.Context(), call("m1"), nil)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("a claim hung for %v", took)
		}
		shadow := newGuard(t, hanging{}, oncemill.Policy{Shadow: true})
		start = time.Now()
		var h counter
		if _, err := shadow.Run(t.Context(), call("m1"), h.run); err != nil || time.Since(start) > 100*time.Millisecond {
			t.Errorf("shadow mode delayed the handler by %v: %v", time.Since(start), err)
		}
		h.want(t, 1)
	})
}

// hanging is a store that never answers.
type hanging struct{}

func (s hanging) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (hanging) claimOne(ctx context.Context, _ dedupstore.Request) (dedupstore.Answer, error) {
	<-ctx.Done()
	return dedupstore.Answer{}, ctx.Err()
}

func (s hanging) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

func (hanging) extendOne(ctx context.Context, x dedupstore.Extension) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s hanging) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (hanging) settleOne(ctx context.Context, _ dedupstore.Claim, _ dedupstore.Settlement) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestGuard_HandlerIsCancelledWithTimeToSpare(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		log := &lines{level: slog.LevelError}
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(log)})
		store.extend = func(func() error) error { return errDown }
		start := time.Now()
		var cancelled time.Duration
		_, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			<-ctx.Done()
			cancelled = time.Since(start)
			return dedupstore.Outcome{}, nil
		})
		if err != nil || cancelled > 28500*time.Millisecond || cancelled < 15*time.Second {
			t.Errorf("cancelled %v into a lease of 30s (%v), want before its end and after several tries", cancelled, err)
		}
		if len(log.attrs) != 1 || log.attrs[0]["error"] != errDown {
			t.Errorf("the log says %v, want why it was cancelled", log.attrs)
		}
		if store.extended() < 4 || store.extended() > 10 {
			t.Errorf("renewed %d times, want several tries with pauses between them", store.extended())
		}
	})
}

func TestGuard_LongHoldRenewsBeforeTheHandlerStarts(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		abandonedClaim(t, store, "m1")
		g := newGuard(t, store, oncemill.Policy{})
		c := call("m1")
		c.MaxWait = time.Minute
		if _, err := g.Run(t.Context(), c, func(context.Context) (dedupstore.Outcome, error) {
			if store.extended() == 0 {
				t.Error("the lease is measured from before the hold, and was not renewed")
			}
			return dedupstore.Outcome{}, nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestGuard_EndedContextStartsNoHandler(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		ctx, shutdown := context.WithCancel(t.Context())
		store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			defer shutdown()
			return apply()
		}
		var h counter
		if _, err := g.Run(ctx, call("m1"), h.run); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
		store.claim = nil
		res, err := g.Run(t.Context(), call("m1"), h.run)
		if err != nil || res.Attempt != 1 {
			t.Errorf("%+v, %v; want the claim given back", res, err)
		}
		h.want(t, 1)
	})
}

func TestGuard_PublisherThatFailsUnderALostClaimIsAZombie(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		h := counter{then: producing("o1")}
		c := call("m1")
		var taken atomic.Bool
		store.extend = func(apply func() error) error {
			if taken.Load() {
				return dedupstore.ErrClaimLost
			}
			return apply()
		}
		c.Publish = func(ctx context.Context, _ []dedupstore.Produced) error {
			taken.Store(true)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		_, err := g.Run(t.Context(), c, h.run)
		answertest.Want(t, err, oncemill.StatusLost)
	})
}

func TestGuard_FailOpenDoesNotRunBesideAKnownOwner(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		abandonedClaim(t, store, "m1")
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		claims := 0
		store.claim = func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			if claims++; claims > 1 {
				return dedupstore.Answer{}, errDown
			}
			return apply()
		}
		var h counter
		c := call("m1")
		c.MaxWait = time.Second
		_, err := g.Run(t.Context(), c, h.run)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		h.want(t, 0)
	})
}

func TestGuard_FullStoreIsNotBypassed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		full, err := dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: 1})
		if err != nil {
			t.Fatal(err)
		}
		var h counter
		_, err = newGuard(t, full, oncemill.Policy{StoreDown: oncemill.FailOpen}).Run(t.Context(), call("m1"), h.run)
		if e := answertest.Want(t, err, oncemill.StatusStoreDown); !errors.Is(e, dedupstore.ErrFull) {
			t.Error(err)
		}
		h.want(t, 0)
	})
}

func TestGuard_FailuresHaveAWindowOfTheirOwn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{FailureWindow: time.Hour})
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Permanent(errors.New("no"))
		}}
		for _, wait := range []time.Duration{0, 59 * time.Minute, time.Minute} {
			time.Sleep(wait)
			if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
				t.Fatal(err)
			}
		}
		h.want(t, 2)
	})
}

func TestShadow_LongRunsKeepTheirClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{Shadow: true})
		if _, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			time.Sleep(5 * time.Minute)
			return dedupstore.Outcome{}, nil
		}); err != nil {
			t.Fatal(err)
		}
		k := key("m1")
		k.Handler = "~charge"
		a, err := dedupstore.ClaimOne(t.Context(), store.Store, dedupstore.Request{
			Key: k, Owner: "a-later-duplicate", Lease: time.Second, Retention: time.Hour, MaxAttempts: 9,
		})
		if err != nil || a.Status != dedupstore.Done {
			t.Errorf("%+v, %v; want the shadow's run counted as done", a, err)
		}
	})
}

// A trial must not cost more than what it tries: a store that is down is not asked for each message.
func TestShadow_AsksAStoreThatIsDownNowAndThen(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{Shadow: true})
		store.down.Store(true)
		const messages = 1000
		for i := range messages { // 10 s of them
			if _, err := g.Run(t.Context(), call(fmt.Sprint(i)), (&counter{}).run); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := store.claimed(); n > 50 {
			t.Errorf("the store was asked %d times for %d messages", n, messages)
		}
		store.down.Store(false)
		time.Sleep(2 * time.Second)
		before := store.claimed()
		for i := range 10 {
			if _, err := g.Run(t.Context(), call(fmt.Sprint("later-", i)), (&counter{}).run); err != nil {
				t.Fatal(err)
			}
		}
		if n := store.claimed() - before; n != 10 {
			t.Errorf("then it was asked %d times for 10 messages", n)
		}
	})
}

func TestGuard_ReasonsAreBoundedAndOnOneLine(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		for _, text := range []string{"two\nlines\x00", strings.Repeat("é", 1000), "\xff"} {
			res, err := g.Run(t.Context(), call(fmt.Sprintf("%.3q", text)), func(context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, oncemill.Permanent(errors.New(text))
			})
			if err != nil || res.Outcome.Kind != dedupstore.Failed || strings.ContainsAny(res.Outcome.Reason, "\n\x00") || !utf8.ValidString(res.Outcome.Reason) {
				t.Errorf("%.10q: %+v, %v", text, res, err)
			}
		}
	})
}

func TestGuard_DeliveriesThatAreAlwaysCancelledDoNotRunForEver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 3})
		var h counter
		var p publisher
		c := call("m1")
		c.Publish, c.DeadLetter, c.MaxWait = p.publish, deadLetter, time.Hour
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			h.then = func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
				cancel() // the adapter lost patience
				return dedupstore.Outcome{}, context.Cause(ctx)
			}
			g.Run(ctx, c, h.run)
			cancel()
		}
		res, err := g.Run(t.Context(), c, h.run)
		if err != nil || !res.Outcome.Exhausted {
			t.Errorf("%+v, %v; want it exhausted", res, err)
		}
		h.want(t, 6) // three that were given back, three that counted
	})
}

// A run that the guard itself cuts off has not failed. Else an outage of the store, or starved heartbeats, would use up
// attempts, and the last one would be stored as a failure, which is acknowledged.
func TestGuard_RunThatIsCutBecauseItsLeaseCannotBeRenewedCountsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(func() error) error { return errDown }
		g := newGuard(t, store, oncemill.Policy{MaxAttempts: 2})
		slow := func(ctx context.Context) (dedupstore.Outcome, error) {
			<-ctx.Done()
			return dedupstore.Outcome{}, context.Cause(ctx)
		}
		for range 2 {
			_, err := g.Run(t.Context(), call("m1"), slow)
			if retry := answertest.Want(t, err, oncemill.StatusRetry); !retry.Uncounted || retry.Attempt != 1 {
				t.Errorf("%+v, want an attempt that does not count", retry)
			}
		}
		_, err := g.Run(t.Context(), call("m1"), slow)
		if retry := answertest.Want(t, err, oncemill.StatusRetry); retry.Uncounted { // it is always too slow
			t.Errorf("after two: %+v, want a counted attempt", retry)
		}
	})
}

// stuckStore answers its first settlement with why it gave up, when the caller does.
type stuckStore struct {
	*faultyStore
	stuck bool
}

func (s *stuckStore) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (s *stuckStore) settleOne(ctx context.Context, c dedupstore.Claim, st dedupstore.Settlement) error {
	if !s.stuck {
		s.stuck = true
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return dedupstore.SettleOne(ctx, s.faultyStore, c, st)
}

// A delivery and an operation of the store may end for different reasons. An operation that times out is tried again,
// even if the delivery was cut off because it runs under another claim that was lost.
func TestGuard_TheEndOfADeliveryIsNotThatOfASettlement(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := &stuckStore{faultyStore: newStore(t)}
		g := newGuard(t, store, oncemill.Policy{})
		ctx, cancel := context.WithCancelCause(t.Context())
		c := &counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			cancel(oncemill.ErrClaimLost)
			return dedupstore.Outcome{}, nil
		}}
		began := time.Now()
		if _, err := g.Run(ctx, call("m1"), c.run); err != nil {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := g.Run(t.Context(), call("m1"), c.run); err != nil {
			t.Error(err)
		}
		c.want(t, 1)
	})
}

// panickyStore is a store whose client panics.
type panickyStore struct {
	dedupstore.Store
	claim, settle bool
}

func (p *panickyStore) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	if p.claim {
		panic("a hook of the client")
	}
	return p.Store.Claim(ctx, requests)
}

func (p *panickyStore) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	if p.settle {
		panic("a hook of the client")
	}
	return p.Store.Settle(ctx, settlings)
}

func TestShadow_AStoreThatPanicsIsNoticedByNobody(t *testing.T) {
	for name, store := range map[string]*panickyStore{"claim": {claim: true}, "settle": {settle: true}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store.Store = newStore(t)
				g := newGuard(t, store, oncemill.Policy{Shadow: true})
				var h counter
				if res, err := g.Run(t.Context(), call("m1"), h.run); err != nil || !res.Bypassed {
					t.Errorf("%+v, %v", res, err)
				}
				h.want(t, 1)
			})
		})
	}
}
