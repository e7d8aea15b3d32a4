package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

var (
	errDown    = errors.New("store is down")
	errRefused = errors.New("card refused")
)

// virtual runs a test in a bubble of virtual time.
func virtual(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// faultyStore is a memory store that misbehaves on request.
type faultyStore struct {
	dedupstore.Store
	claim  func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error)
	settle func(s dedupstore.Settlement, apply func() error) error
}

func newStore(t *testing.T) *faultyStore {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &faultyStore{Store: m}
}

func (s *faultyStore) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *faultyStore) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	apply := func() (dedupstore.Answer, error) { return dedupstore.ClaimOne(ctx, s.Store, r) }
	if s.claim != nil {
		return s.claim(apply)
	}
	return apply()
}

func (s *faultyStore) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (s *faultyStore) settleOne(ctx context.Context, c dedupstore.Claim, st dedupstore.Settlement) error {
	apply := func() error { return dedupstore.SettleOne(ctx, s.Store, c, st) }
	if s.settle != nil {
		return s.settle(st, apply)
	}
	return apply()
}

func newGuard(t *testing.T, store dedupstore.Store, p oncemill.Policy) *oncemill.Guard {
	t.Helper()
	p.Logger = slog.New(slog.DiscardHandler)
	g, err := oncemill.NewGuard(store, p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func call(id string) oncemill.Call {
	return oncemill.Call{Key: dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id}}
}

// counter is a handler that counts its runs.
type counter struct{ runs atomic.Int32 }

func (c *counter) run(context.Context) (dedupstore.Outcome, error) {
	c.runs.Add(1)
	return dedupstore.Outcome{}, nil
}

func (c *counter) want(t testing.TB, runs int) {
	t.Helper()
	if got := int(c.runs.Load()); got != runs {
		t.Errorf("handler ran %d times, want %d", got, runs)
	}
}

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}

func failing(err error) func(context.Context) (dedupstore.Outcome, error) {
	return func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, err }
}

// abandonedClaim claims as a holder does that dies afterwards.
func abandonedClaim(t *testing.T, s dedupstore.Store, id string, change ...func(*dedupstore.Request)) dedupstore.Claim {
	t.Helper()
	r := dedupstore.Request{
		Key: call(id).Key, Owner: "an-owner-that-dies-afterwards", Lease: 30 * time.Second, Retention: 24 * time.Hour, MaxAttempts: 10,
	}
	for _, c := range change {
		c(&r)
	}
	a, err := dedupstore.ClaimOne(t.Context(), s, r)
	if err != nil || a.Status != dedupstore.AcquiredRun {
		t.Fatalf("claim: %s, %v", a.Status, err)
	}
	return a.Claim
}
