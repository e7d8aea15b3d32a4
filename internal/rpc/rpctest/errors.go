package rpctest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/keytest"
)

func (s suite) statuses(t *testing.T) {
	for code := uint32(1); code <= 16; code++ {
		detail := wrapperspb.String("why")
		l := &keytest.Ledger{}
		rg := s.memory(t, Settings{}, answering(l, s.Error(code, "no: \u00e4", detail)))
		first, again := rg.pay("k"), rg.pay("k")
		want(t, first, code, false)
		want(t, again, code, true)
		for _, a := range []Answer{first, again} {
			var got wrapperspb.StringValue
			if a.Message != "no: \u00e4" || len(a.Details) != 1 || a.Details[0].UnmarshalTo(&got) != nil ||
				got.GetValue() != "why" {
				t.Errorf("code %d: %q, details %v", code, a.Message, a.Details)
			}
		}
		keytest.WantRuns(t, l, 1)
	}
}

// shared returns an error that is a variable of a package, as handlers often do.
func (s suite) shared(t *testing.T) {
	refused := s.Error(notFound, "no")
	rg := s.memory(t, Settings{}, func(context.Context, string, string) (string, error) { return "", refused })
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if a := rg.pay("k" + strconv.Itoa(i)); a.Code != notFound {
				t.Errorf("answered %d %q", a.Code, a.Message)
			}
		})
	}
	wg.Wait()
}

var errNoLuck = errors.New("no luck")

func (s suite) errors(t *testing.T) {
	for _, box := range []dedupstore.Store{keytest.NewMemory(t), keytest.NewInbox(t)} {
		l := &keytest.Ledger{}
		policy := oncemill.Policy{MaxAttempts: 3, Backoff: oncemill.Backoff{Min: 1, Max: 1}}
		rg := s.serve(t, keytest.NewGuard(t, box, policy), Settings{}, answering(l, errNoLuck))
		for i := range 4 {
			a := rg.pay("k")
			want(t, a, unknown, i == 3)
			if a.Message != errNoLuck.Error() || a.again() != (i < 2) {
				t.Errorf("call %d: %q, RetryInfo %v", i, a.Message, a.again())
			}
		}
		keytest.WantRuns(t, l, 3)
	}
}

func (s suite) steering(t *testing.T) {
	other := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	_, ofAnother := oncemill.Do(t.Context(), other, oncemill.Call{
		Key: dedupstore.Key{Tenant: "acme", Group: "bank", Handler: "charge", ID: "1"},
	}, func(context.Context) (int, error) { return 0, oncemill.Permanent(errNoLuck) })
	for name, tc := range map[string]struct {
		err   func(error) error
		runs  int // of three calls
		later bool
	}{
		"permanent":                 {oncemill.Permanent, 1, false},
		"retry after":               {func(err error) error { return oncemill.RetryAfter(time.Hour, err) }, 1, true},
		"uncounted":                 {oncemill.Uncounted, 3, false},
		"no effect":                 {oncemill.NoEffect, 3, false},
		"permanent, of another run": {func(err error) error { return fmt.Errorf("%w: %w", err, ofAnother) }, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := &keytest.Ledger{}
			policy := oncemill.Policy{Backoff: oncemill.Backoff{Min: 1, Max: 1}}
			err := tc.err(s.Error(notFound, "no luck"))
			rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), policy), Settings{}, answering(l, err))
			for i := range 3 {
				a := rg.pay("k")
				if tc.later && i > 0 {
					wantRefusal(t, a, unavailable, "UNAVAILABLE")
					continue
				}
				want(t, a, notFound, tc.runs == 1 && i > 0)
				if a.again() == (tc.runs == 1 && !tc.later) {
					t.Errorf("call %d: RetryInfo is %v", i, a.again())
				}
			}
			keytest.WantRuns(t, l, tc.runs)
		})
	}
}

func harmless(code uint32) bool { return code == notFound || code == resourceExhausted }

func (s suite) released(t *testing.T) {
	for name, policy := range map[string]oncemill.Policy{"usual": {MaxAttempts: 1}, "parks": oncemill.Irreversible()} {
		t.Run(name, func(t *testing.T) {
			l := &keytest.Ledger{}
			rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), policy), Settings{Release: harmless},
				answering(l, s.Error(notFound, "a"), s.Error(resourceExhausted, "b"), s.Error(notFound, "c"), nil))
			for _, code := range []uint32{notFound, resourceExhausted, notFound} { // none counts as the one attempt
				a := rg.pay("k")
				want(t, a, code, false)
				if a.again() {
					t.Error("it has a RetryInfo")
				}
				wantRefusal(t, rg.send(Pay, "other", "idempotency-key", "k"), failedPrecondition, "KEY_REUSED")
			}
			want(t, rg.pay("k"), ok, false)
			want(t, rg.pay("k"), ok, true)
			keytest.WantRuns(t, l, 4)
		})
	}
}

func (s suite) releasedFailures(t *testing.T) {
	parks := oncemill.Irreversible()
	for _, tc := range []struct {
		policy oncemill.Policy
		runs   int
	}{{oncemill.Policy{MaxAttempts: 2}, 2}, {parks, 1}} {
		l := &keytest.Ledger{}
		rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), tc.policy),
			Settings{Release: func(code uint32) bool { return code == unavailable }},
			answering(l, s.Error(unavailable, "down")))
		for i := range 3 {
			want(t, rg.pay("k"), unavailable, i >= tc.runs)
		}
		keytest.WantRuns(t, l, tc.runs)
	}
}

func (s suite) panics(t *testing.T) {
	var log strings.Builder
	var mu sync.Mutex
	l := &keytest.Ledger{}
	store := &keytest.Spy{Store: keytest.NewMemory(t)}
	policy := oncemill.Policy{Logger: keytest.Quiet()}
	rg := s.serve(t, keytest.NewGuard(t, store, policy), Settings{},
		func(context.Context, string, string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			log.WriteString(".")
			if l.Add("") == 1 {
				panic("card 4242")
			}
			return "done", nil
		})
	if a := rg.pay("k"); a.Code == ok {
		t.Errorf("a panic was answered with %q", a.Value)
	}
	want(t, rg.pay("k"), ok, false)
	want(t, rg.pay("k"), ok, true)
	keytest.WantRuns(t, l, 2)
	if kept := strings.Join(store.Seen(), "\n"); strings.Contains(kept, "4242") {
		t.Errorf("the store got the panic's value: %s", kept)
	}
}

func (s suite) parked(t *testing.T) {
	l := &keytest.Ledger{}
	rg := s.serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Irreversible()), Settings{},
		func(context.Context, string, string) (string, error) { l.Add(""); panic("bug") })
	if a := rg.pay("k"); a.Code == ok {
		t.Errorf("a panic was answered with %q", a.Value)
	}
	a := rg.pay("k")
	wantRefusal(t, a, unknown, "OUTCOME_UNKNOWN")
	if !a.replayed() {
		t.Error("it does not say that it is final")
	}
	keytest.WantRuns(t, l, 1)
}
