package oncewatermill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A mortal store is what a process sees that dies: nothing gets through any more.
type mortal struct {
	dedupstore.Store
	dead atomic.Bool
}

var errDied = errors.New("the process has died")

func (m *mortal) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	if !m.dead.Load() {
		return m.Store.Claim(ctx, requests)
	}
	results := make([]dedupstore.ClaimResult, len(requests))
	for i := range results {
		results[i].Err = errDied
	}
	return results
}

func (m *mortal) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	if !m.dead.Load() {
		return m.Store.Extend(ctx, extensions)
	}
	return dead(len(extensions))
}

func (m *mortal) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	if !m.dead.Load() {
		return m.Store.Settle(ctx, settlings)
	}
	return dead(len(settlings))
}

func dead(n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = errDied
	}
	return errs
}

// A throttle is a middleware outside of the guard in which messages wait, as in Watermill's own Throttle.
type throttle struct {
	store *mortal
	gate  chan struct{}
}

func (h throttle) middleware(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		if strings.HasPrefix(m.Metadata.Get("oncemill-id"), "slow") {
			<-h.gate
			if h.store.dead.Load() {
				return nil, errDied
			}
		}
		return next(m)
	}
}

// live starts a process whose Router holds up slow messages, and has it die after a time; zero: when they are handled.
func live(t *testing.T, memory dedupstore.Store, policy oncemill.Policy, lost *deadLetters, warm string,
	slow []string, after time.Duration, handle func(id string)) {
	t.Helper()
	store := &mortal{Store: memory}
	p := newProcessor(t, store, consumer.Config{DeadLetters: lost, DeadLetterTopic: "dead", Policy: policy})
	outside := throttle{store, make(chan struct{})}
	s := newSource(p, delivery(warm))
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	r.AddMiddleware(outside.middleware, oncewatermill.Middleware(p))
	r.AddConsumerHandler("charge", "orders", subscriber(t, s), func(m *message.Message) error {
		handle(m.Metadata.Get("oncemill-id"))
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- r.Run(context.Background()) }()
	<-r.Running()
	synctest.Wait() // the handler's name is known: messages are claimed ahead
	for _, id := range slow {
		s.queue <- delivery(id)
	}
	time.Sleep(after)
	synctest.Wait()
	store.dead.Store(after > 0) // SIGKILL
	close(outside.gate)
	time.Sleep(20 * time.Second)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	_ = p.Close(context.Background())
	time.Sleep(time.Minute) // its leases end
}

// Messages wait in a middleware outside of the guard, and the process dies meanwhile, ten times. Their handler has never
// been called: no attempt is spent, or two at most where the process dies within moments.
func TestSubscriber_WhatWaitsOutsideOfTheGuardKeepsItsAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		policy oncemill.Policy
		after  time.Duration
		lost   int // attempts at most
	}{
		"dies after a second":             {oncemill.Policy{MaxAttempts: 10}, time.Second, 2},
		"dies after a minute":             {oncemill.Policy{MaxAttempts: 10}, time.Minute, 0},
		"at most once, after a second":    {oncemill.Irreversible(), time.Second, 2},
		"at most once, after three":       {oncemill.Irreversible(), 3 * time.Second, 0},
		"at most once, after two, nearly": {oncemill.Irreversible(), longestAhead, 2},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				memory := newStore(t)
				var lost deadLetters
				var mu sync.Mutex
				runs := map[string]int{}
				handle := func(id string) {
					mu.Lock()
					defer mu.Unlock()
					runs[id]++
				}
				slow := []string{"slow-1", "slow-2", "slow-3"}
				for n := range 10 {
					live(t, memory, c.policy, &lost, fmt.Sprintf("warm-%d", n), slow, c.after, handle)
				}
				for _, id := range slow {
					if runs[id] != 0 {
						t.Fatalf("%s ran %d times before its middleware was reached", id, runs[id])
					}
				}
				live(t, memory, c.policy, &lost, "warm", slow, 0, handle)
				for _, id := range slow {
					seen, err := memory.Look(t.Context(), []dedupstore.Key{
						{Tenant: "default", Group: "billing", Handler: "charge", ID: id}})
					if err != nil {
						t.Fatal(err)
					}
					if r := seen[0]; runs[id] != 1 || r.Outcome.Kind != dedupstore.Succeeded || r.Attempts > 1+c.lost {
						t.Errorf("%s ran %d times, and is %s after %d attempts; want it handled once, with %d lost at most",
							id, runs[id], r.Outcome.Kind, r.Attempts, c.lost)
					}
				}
				if len(lost.Sent) > 0 {
					t.Errorf("%d dead letters", len(lost.Sent))
				}
			})
		})
	}
}

// longestAhead is when a claim ahead is given back.
const longestAhead = 2 * time.Second

// A claim that was given back is free for others, and the middleware makes its own.
func TestSubscriber_AClaimAheadIsGivenBackWhileAMiddlewareHoldsItsMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		p := newProcessor(t, store, consumer.Config{})
		s := newSource(p, delivery("first"))
		gate := make(chan struct{})
		var attempts []int
		stop := over(t, s, func(m *message.Message) error {
			attempts = append(attempts, oncemill.FromContext(m.Context()).Attempt)
			return nil
		}, func(next message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				if m.UUID == "a" {
					<-gate
				}
				return next(m)
			}
		}, oncewatermill.Middleware(p))
		synctest.Wait()
		s.queue <- delivery("a")
		state := func() dedupstore.State {
			seen, err := store.Look(t.Context(), []dedupstore.Key{
				{Tenant: "default", Group: "billing", Handler: "charge", ID: "a"}})
			if err != nil {
				t.Fatal(err)
			}
			return seen[0].State
		}
		time.Sleep(longestAhead - time.Millisecond)
		synctest.Wait()
		if got := state(); got != dedupstore.Running {
			t.Errorf("before two seconds are over the record is %s, want it claimed", got)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if got := state(); got != dedupstore.Retryable {
			t.Errorf("after two seconds the record is %s, want it given back", got)
		}
		close(gate)
		synctest.Wait()
		stop()
		s.want(t, consumer.Ack, consumer.Ack)
		if len(attempts) != 2 || attempts[1] != 1 {
			t.Errorf("the runs were attempts %v, want the first of each", attempts)
		}
	})
}

// Suspects run one at a time in the Router, too.
func TestSubscriber_SuspectsRunOneAtATime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		for n := range 2 {
			for _, id := range []string{"a", "b", "c"} {
				answer, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
					Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id},
					Owner: fmt.Sprintf("dead-process-%04d", n), Lease: time.Second, Retention: time.Hour, MaxAttempts: 9,
				})
				if err != nil || answer.Status != dedupstore.AcquiredRun {
					t.Fatalf("%+v, %v, want a run that crashes", answer, err)
				}
			}
			time.Sleep(2 * time.Second)
		}
		p := newProcessor(t, store, consumer.Config{})
		s := newSource(p, delivery("first"))
		var running, beside atomic.Int32
		stop := over(t, s, func(*message.Message) error {
			if running.Add(1) > 1 {
				beside.Add(1)
			}
			defer running.Add(-1)
			time.Sleep(10 * time.Second)
			return nil
		}, oncewatermill.Middleware(p))
		time.Sleep(11 * time.Second) // the handler's name is known
		for _, id := range []string{"a", "b", "c"} {
			s.queue <- delivery(id)
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		stop()
		s.want(t, consumer.Ack, consumer.Ack, consumer.Ack, consumer.Ack)
		if n := beside.Load(); n > 0 {
			t.Errorf("%d suspects ran beside others", n)
		}
	})
}
