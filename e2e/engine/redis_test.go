package engine_test

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
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

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
	patient := call("m1")
	patient.MaxWait = time.Minute
	go func() {
		_, err := zombie.Run(t.Context(), patient, func(ctx context.Context) (dedupstore.Outcome, error) {
			proxy.Inject(func(redistest.Exchange) redistest.Fault { return redistest.Fault{HoldRequest: time.Hour} })
			close(began)
			<-ctx.Done()
			cancelled <- time.Now()
			return dedupstore.Outcome{}, context.Cause(ctx)
		})
		ended <- err
	}()
	<-began
	if _, err := successor.Run(t.Context(), patient, func(context.Context) (dedupstore.Outcome, error) {
		takeover := time.Now()
		select {
		case at := <-cancelled:
			if at.After(takeover) {
				t.Errorf("cancelled %v after another run began", at.Sub(takeover))
			}
		case <-time.After(testserver.WaitLimit):
			t.Error("another run has begun, and the first one was not cancelled")
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
	const lease = 6 * time.Second
	g := newGuard(t, store, oncemill.Policy{Lease: lease})
	stalled := make(chan struct{})
	var once sync.Once
	var start time.Time
	patient := call("m1")
	patient.MaxWait = time.Minute
	_, err = g.Run(t.Context(), patient, func(ctx context.Context) (dedupstore.Outcome, error) {
		start = time.Now()
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
	if took := time.Since(start); err != nil || took >= lease { // the promise
		t.Errorf("%v after %v, want the outcome stored before the lease of %v ends", err, took, lease)
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
		const lease = 6 * time.Second
		g := newGuard(t, store, oncemill.Policy{Lease: lease, MaxResultBytes: 1 << 20})
		var ended time.Time
		patient := call("m1")
		patient.MaxWait = time.Minute
		_, err = g.Run(t.Context(), patient, func(context.Context) (dedupstore.Outcome, error) {
			var once sync.Once
			proxy.Inject(func(redistest.Exchange) redistest.Fault {
				var fault redistest.Fault
				once.Do(func() { fault.HoldRequest = time.Hour })
				return fault
			})
			ended = time.Now()
			return dedupstore.Outcome{Result: make([]byte, size)}, nil
		})
		if took := time.Since(ended); err != nil || took >= lease { // the promise
			t.Errorf("result of %d bytes: %v after %v, want the outcome stored before the lease of %v ends", size, err, took, lease)
		}
		proxy.Cut()
	}
}

// A claim that is given up while the server waits for replicas is granted all the same, and counts.
func TestNewGuard_RefusesALeaseTooShortForAStoreThatWaits(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, tc := range []struct {
		config redisstore.Config
		policy oncemill.Policy
		ok     bool
	}{
		{redisstore.Config{Replicas: 1}, oncemill.Policy{}, true},
		{redisstore.Config{Replicas: 1}, oncemill.Policy{Lease: 6 * time.Second}, false},
		{redisstore.Config{Replicas: 1}, oncemill.Policy{Lease: 7 * time.Second}, true},
		{redisstore.Config{}, oncemill.Policy{Lease: time.Second}, true},
		{redisstore.Config{Replicas: 1}, oncemill.Policy{Lease: time.Second, Shadow: true}, true},
	} {
		store, err := redisstore.New(rdb, tc.config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = oncemill.NewGuard(store, tc.policy)
		if tc.ok && err != nil {
			t.Errorf("%+v, lease %v: %v", tc.config, tc.policy.Lease, err)
		} else if !tc.ok {
			if e := as[*dedupstore.InvalidError](t, err); e.Field != "Policy.Lease" {
				t.Errorf("field %q", e.Field)
			}
		}
	}
}
