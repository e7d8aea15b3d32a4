package oncemill_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

func TestGuard_HandlerIsCancelledInTimeThoughTheStoreHeedsNoContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(apply func() error) error {
			time.Sleep(2 * time.Minute)
			return errDown
		}
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		start := time.Now()
		_, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			<-ctx.Done()
			if took := time.Since(start); took < 27*time.Second || took >= 30*time.Second {
				t.Errorf("cancelled after %v, want it just before the lease of 30 s ends", took)
			}
			if context.Cause(ctx) != oncemill.ErrClaimLost { //nolint:errorlint // itself
				t.Errorf("cause %v", context.Cause(ctx))
			}
			return dedupstore.Outcome{}, ctx.Err()
		})
		answertest.Want(t, err, oncemill.StatusRetry)
	})
}

// A store that answers a heartbeat late, but in time, has not lost the claim.
func TestGuard_HeartbeatThatIsAnsweredLateKeepsTheClaim(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.extend = func(apply func() error) error {
			err := apply()
			time.Sleep(8 * time.Second) // longer than an operation should take
			return err
		}
		log := &lines{level: slog.LevelWarn}
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second, Logger: slog.New(log)})
		h := counter{then: func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			time.Sleep(59 * time.Second)
			return dedupstore.Outcome{}, ctx.Err()
		}}
		if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
			t.Error(err)
		}
		if len(log.lines) != 1 || !strings.Contains(log.lines[0], "took long to renew a lease") {
			t.Errorf("in a minute the log says %q, want once that renewals take long", log.lines)
		}
	})
}

// A store may break its promise to heed contexts, or its server may hang in a way that no client notices.
func TestGuard_HeartbeatThatNeverReturnsIsSentAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		var calls atomic.Int32
		store.extend = func(apply func() error) error {
			if calls.Add(1) == 1 {
				time.Sleep(10 * time.Minute)
				return errDown
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		h := counter{then: func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Minute):
			}
			return dedupstore.Outcome{}, ctx.Err()
		}}
		if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
			t.Errorf("a run beside a heartbeat that hangs ended with %v", err)
		}
	})
}

// Nobody could recover from a panic in a heartbeat: it is a renewal that failed.
func TestGuard_StoreThatPanicsInAHeartbeatEndsTheRunNotTheProcess(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		panics := 1
		store.extend = func(apply func() error) error {
			if panics > 0 {
				panics--
				panic("a hook of the client")
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		h := counter{then: func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Minute):
			}
			return dedupstore.Outcome{}, ctx.Err()
		}}
		if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
			t.Errorf("after one panic: %v", err)
		}
		panics = 1000
		_, err := g.Run(t.Context(), call("m2"), h.run)
		if e := answertest.Want(t, err, oncemill.StatusRetry); !e.Uncounted {
			t.Errorf("after nothing but panics: %v", err)
		}
	})
}

// Pauses between attempts grow up to half a second. The last one would end after the lease.
func TestGuard_OutcomeIsStoredThoughTheStoreIsAwayUntilShortlyBeforeTheLeaseEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const lease = time.Second
		store := newStore(t)
		var start time.Time
		store.settle = func(_ dedupstore.Settlement, apply func() error) error {
			if time.Since(start) < lease*9/10 {
				return errDown
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{Lease: lease})
		for i := range 50 { // the pauses are drawn
			start = time.Now()
			_, err := g.Run(t.Context(), call(fmt.Sprint(i)), (&counter{}).run)
			if err != nil || time.Since(start) >= lease {
				t.Errorf("%v after %v, want the outcome stored", err, time.Since(start))
			}
		}
	})
}

// A handler that was told to end, and does not heed it, keeps its key no longer than its lease.
func TestGuard_HandlerThatIgnoresItsEndIsTakenOver(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		var away atomic.Bool
		away.Store(true)
		store.extend = func(apply func() error) error {
			if away.Load() {
				return errDown
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		zombie, end := make(chan error, 1), make(chan struct{})
		go func() {
			_, err := g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
				<-ctx.Done()
				away.Store(false) // the store is back in time to extend the lease
				<-end
				return dedupstore.Outcome{}, nil
			})
			zombie <- err
		}()
		time.Sleep(31 * time.Second)
		if res, err := g.Run(t.Context(), call("m1"), (&counter{}).run); err != nil || res.Attempt != 2 {
			t.Errorf("the next delivery ended with %+v, %v, want a second attempt", res, err)
		}
		close(end)
		answertest.Want(t, <-zombie, oncemill.StatusLost)
	})
}

// A lease counts from the first claim of its owner. One that was polled for longer is over when it is granted, until it
// is renewed.
func TestGuard_ClaimThatWaitedForLongerThanItsLeaseRuns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const lease = 5 * time.Second
		store := newStore(t)
		store.extend = func(apply func() error) error {
			time.Sleep(lease / 10)
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{Lease: lease})
		c := call("m1")
		_, err := g.Run(t.Context(), c, func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.RetryAfter(8*time.Second, errDown)
		})
		answertest.Want(t, err, oncemill.StatusRetry)
		c.MaxWait = 10 * time.Second
		res, err := g.Run(t.Context(), c, func(ctx context.Context) (dedupstore.Outcome, error) {
			time.Sleep(time.Second)
			return dedupstore.Outcome{}, context.Cause(ctx)
		})
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// Runs that begin all the time do not put off the renewals of those that are at work.
func TestGuard_HeartbeatsComeThoughRunsBeginAllTheTime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{Lease: 24 * time.Second}) // it looks at leases each second
		ended := make(chan error, 1)
		go func() {
			_, err := g.Run(t.Context(), call("long"), func(context.Context) (dedupstore.Outcome, error) {
				time.Sleep(time.Minute) // virtual
				return dedupstore.Outcome{}, nil
			})
			ended <- err
		}()
		for i := range 100 {
			if _, err := g.Run(t.Context(), call(fmt.Sprint(i)), func(context.Context) (dedupstore.Outcome, error) {
				time.Sleep(500 * time.Millisecond) // virtual
				return dedupstore.Outcome{}, nil
			}); err != nil {
				t.Fatal(err)
			}
			if until := store.look(t, "long").Until; !time.Now().Before(until) {
				t.Fatalf("its lease has ended at %v", until)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// What a handler has left to go on ends with its run.
func TestGuard_ContextOfAHandlerEndsWithItsRun(t *testing.T) {
	for name, store := range map[string]func(t *testing.T) dedupstore.Store{
		"leased": func(t *testing.T) dedupstore.Store { return newStore(t) },
		"inbox":  func(t *testing.T) dedupstore.Store { return newInbox(t) },
		"first":  func(t *testing.T) dedupstore.Store { return newFirstInbox(t) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				var kept context.Context
				_, err := newGuard(t, store(t), oncemill.Policy{}).Run(t.Context(), firstly("m1"),
					func(ctx context.Context) (dedupstore.Outcome, error) {
						kept = ctx
						return dedupstore.Outcome{}, ctx.Err()
					})
				if err != nil || kept.Err() == nil {
					t.Errorf("%v; the context has ended with %v", err, kept.Err())
				}
			})
		})
	}
}
