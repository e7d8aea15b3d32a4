package rpctest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/rpc"
)

// occupied is a shop in which a payment under the key k is being processed until it is released.
func (s suite) occupied(t testing.TB, set Settings, p oncemill.Policy) (
	rg *Rig, l *keytest.Ledger, release func(), first <-chan Answer,
) {
	begun, end, answers := make(chan struct{}), make(chan struct{}), make(chan Answer, 1)
	var once sync.Once
	l = &keytest.Ledger{}
	charge := charging(l)
	rg = s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), p), set,
		func(ctx context.Context, procedure, value string) (string, error) {
			once.Do(func() { close(begun) })
			<-end
			return charge(ctx, procedure, value)
		})
	go func() { answers <- rg.pay("k") }()
	<-begun
	return rg, l, sync.OnceFunc(func() { close(end) }), answers
}

func (s suite) inProgress(t *testing.T) {
	rg, l, release, first := s.occupied(t, Settings{}, oncemill.Policy{})
	defer release()
	for range 3 {
		a := rg.pay("k")
		wantRefusal(t, a, aborted, "IN_PROGRESS")
		if !a.again() {
			t.Errorf("no RetryInfo in %v", a.Details)
		}
	}
	wantRefusal(t, rg.send(Pay, "other", "idempotency-key", "k"), failedPrecondition, "KEY_REUSED")
	release()
	want(t, <-first, ok, false)
	want(t, rg.pay("k"), ok, true)
	keytest.WantRuns(t, l, 1)
}

func (s suite) waiting(t *testing.T) {
	set := Settings{MaxWait: time.Hour, WaitLimit: oncemill.NewWaitLimit(1)}
	rg, l, release, first := s.occupied(t, set, oncemill.Policy{})
	defer release()
	answers := make(chan Answer)
	for range 2 {
		go func() { answers <- rg.pay("k") }()
	}
	wantRefusal(t, <-answers, aborted, "IN_PROGRESS") // one of the two has no place to wait
	release()
	want(t, <-first, ok, false)
	want(t, <-answers, ok, true)
	keytest.WantRuns(t, l, 1)
}

func (s suite) crowd(t *testing.T) {
	l := &keytest.Ledger{}
	rg := s.memory(t, Settings{}, charging(l))
	answers := make([]Answer, 2000)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			<-start
			answers[i] = rg.pay("k")
		})
	}
	close(start)
	wg.Wait()
	fresh, replays, conflicts := 0, 0, 0
	value := ""
	for _, a := range answers {
		switch {
		case a.Code == ok && (value == "" || a.Value == value):
			value = a.Value
			if a.replayed() {
				replays++
			} else {
				fresh++
			}
		case a.Code == aborted && a.again():
			conflicts++
		default:
			t.Errorf("answered %d %s", a.Code, a.Value+a.Message)
		}
	}
	if fresh != 1 || l.Total() != 1 {
		t.Errorf("%d fresh responses, %d runs, want one each", fresh, l.Total())
	}
	t.Logf("1 run, %d replays, %d conflicts", replays, conflicts)
}

// leave makes a payment under the key k, and goes when it is being processed.
func leave(t *testing.T, rg *Rig, begun <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		rg.call(ctx, Pay, wrapperspb.String("100"), "idempotency-key", "k")
	}()
	<-begun
	cancel()
	<-gone
}

func (s suite) leaving(t *testing.T) {
	l := &keytest.Ledger{}
	begun, end := make(chan struct{}), make(chan struct{})
	charge := charging(l)
	rg := s.memory(t, Settings{}, func(ctx context.Context, procedure, value string) (string, error) {
		close(begun)
		<-end
		if ctx.Err() != nil {
			t.Errorf("the handler's context ended: %v", context.Cause(ctx))
		}
		if _, set := ctx.Deadline(); set {
			t.Error("the handler's context has the client's deadline")
		}
		return charge(ctx, procedure, value)
	})
	leave(t, rg, begun)
	close(end)
	keytest.Until(t, "the response is kept", func() bool { return rg.pay("k").Code == ok })
	want(t, rg.pay("k"), ok, true)
	keytest.WantRuns(t, l, 1)
}

func (s suite) lingering(t *testing.T) {
	for name, result := range map[string]func(ctx context.Context) error{
		"its context's error": func(ctx context.Context) error { return ctx.Err() },
		"a code": func(context.Context) error {
			return s.Error(1, "a service that was called says so")
		},
	} {
		t.Run(name, func(t *testing.T) {
			begun, ended := make(chan struct{}), make(chan error, 1)
			l := &keytest.Ledger{}
			now := time.Duration(-1)
			guard := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{MaxAttempts: 1})
			rg := s.serveLinger(t, guard, Settings{}, &now, func(ctx context.Context, _, _ string) (string, error) {
				if l.Add("") > 1 {
					return "paid", nil
				}
				close(begun)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return "", result(ctx)
			})
			leave(t, rg, begun)
			if err := <-ended; !errors.Is(err, rpc.ErrClientGone) {
				t.Errorf("the cause is %v", err)
			}
			keytest.Until(t, "the key is free again", func() bool { return rg.pay("k").Code == ok })
			keytest.WantRuns(t, l, 2)
		})
	}
}
