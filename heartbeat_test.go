package oncemill_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
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
		as[*oncemill.RetryError](t, err)
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
		g := newGuard(t, store, oncemill.Policy{Lease: 30 * time.Second})
		h := counter{then: func(ctx context.Context, _ int) (dedupstore.Outcome, error) {
			time.Sleep(5 * time.Minute)
			return dedupstore.Outcome{}, ctx.Err()
		}}
		if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
			t.Error(err)
		}
	})
}

// The client's default is not to heed contexts: what waits for the network waits for its ReadTimeout, again and again.
func TestGuard_HandlerIsCancelledBeforeATakeoverThoughRedisDoesNotAnswerItsHeartbeat(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "no")
	proxy := redistest.StartProxy(t, server.Addr)
	guard := func(addr string) *oncemill.Guard {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { rdb.Close() })
		store, err := redisstore.New(rdb, redisstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return newGuard(t, store, oncemill.Policy{Lease: 2 * time.Second})
	}
	zombie, successor := guard(proxy.Addr), guard(server.Addr)
	began, cancelled := make(chan struct{}), make(chan time.Time, 1)
	ended := make(chan error, 1)
	go func() {
		_, err := zombie.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
			proxy.Inject(func(redistest.Exchange) redistest.Fault { return redistest.Fault{HoldRequest: time.Hour} })
			close(began)
			<-ctx.Done()
			cancelled <- time.Now()
			return dedupstore.Outcome{}, context.Cause(ctx)
		})
		ended <- err
	}()
	<-began
	late := call("m1")
	late.MaxWait = time.Minute
	if _, err := successor.Run(t.Context(), late, func(context.Context) (dedupstore.Outcome, error) {
		takeover := time.Now()
		select {
		case at := <-cancelled:
			if at.After(takeover) {
				t.Errorf("cancelled %v after another run began", at.Sub(takeover))
			}
		case <-time.After(5 * time.Second):
			t.Error("another run has begun, and the first one was not cancelled within 5 s")
		}
		return dedupstore.Outcome{}, nil
	}); err != nil {
		t.Error(err)
	}
	proxy.Cut()
	if err := <-ended; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the run that was cancelled ended with %v", err)
	}
}

// One connection that stalls must not keep an outcome from being stored until the lease is over.
func TestGuard_OutcomeIsStoredInTimeThoughRedisDoesNotAnswerAHeartbeat(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "no")
	proxy := redistest.StartProxy(t, server.Addr)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard(t, store, oncemill.Policy{Lease: 2 * time.Second})
	stalled := make(chan struct{})
	var once sync.Once
	start := time.Now()
	_, err = g.Run(t.Context(), call("m1"), func(ctx context.Context) (dedupstore.Outcome, error) {
		proxy.Inject(func(redistest.Exchange) redistest.Fault {
			var fault redistest.Fault
			once.Do(func() {
				fault.HoldRequest = time.Hour
				close(stalled)
			})
			return fault
		})
		select {
		case <-stalled:
		case <-ctx.Done():
		}
		return dedupstore.Outcome{}, nil
	})
	if took := time.Since(start); err != nil || took >= 2*time.Second {
		t.Errorf("%v after %v, want the outcome stored before the lease of 2 s ends", err, took)
	}
	proxy.Cut()
}

// The client's default is not to heed contexts: it would be known too late that the outcome is not stored.
func TestGuard_OutcomeIsStoredInTimeThoughRedisDoesNotAnswerTheFirstTime(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 100 << 10} {
		server := redistest.Start(t, "--appendonly", "no")
		proxy := redistest.StartProxy(t, server.Addr)
		rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr})
		t.Cleanup(func() { rdb.Close() })
		store, err := redisstore.New(rdb, redisstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		g := newGuard(t, store, oncemill.Policy{Lease: 2 * time.Second, MaxResultBytes: 1 << 20})
		var ended time.Time
		_, err = g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			var once sync.Once
			proxy.Inject(func(redistest.Exchange) redistest.Fault {
				var fault redistest.Fault
				once.Do(func() { fault.HoldRequest = time.Hour })
				return fault
			})
			ended = time.Now()
			return dedupstore.Outcome{Result: make([]byte, size)}, nil
		})
		if took := time.Since(ended); err != nil || took >= 2*time.Second {
			t.Errorf("result of %d bytes: %v after %v, want the outcome stored before the lease of 2 s ends", size, err, took)
		}
		proxy.Cut()
	}
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
		if e := as[*oncemill.RetryError](t, err); !e.Uncounted {
			t.Errorf("after nothing but panics: %v", err)
		}
	})
}

// Pauses between attempts grow up to half a second, of which the last would end after the lease.
func TestGuard_OutcomeIsStoredThoughTheStoreIsAwayUntilShortlyBeforeTheLeaseEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const lease = time.Second
		store := newStore(t)
		start := time.Now()
		store.settle = func(_ dedupstore.Settlement, apply func() error) error {
			if time.Since(start) < lease*9/10 {
				return errDown
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{Lease: lease})
		_, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil })
		if err != nil || time.Since(start) >= lease {
			t.Errorf("%v after %v, want the outcome stored", err, time.Since(start))
		}
	})
}
