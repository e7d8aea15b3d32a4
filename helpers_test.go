package oncemill_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// virtual runs a test in a bubble of virtual time, which also fails if a goroutine is left behind.
func virtual(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// faultyStore is a memory store that misbehaves on request.
type faultyStore struct {
	dedupstore.Store
	down      atomic.Bool // every operation fails before it is applied
	claim     func(apply func() (dedupstore.Answer, error)) (dedupstore.Answer, error)
	settle    func(s dedupstore.Settlement, apply func() error) error
	extend    func(apply func() error) error
	mu        sync.Mutex
	claims    []dedupstore.Request
	settled   []dedupstore.Settlement
	extension int
}

func (s *faultyStore) claimed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.claims)
}

func (s *faultyStore) extended() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.extension
}

var errDown = errors.New("store is down")

func newStore(t testing.TB) *faultyStore {
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
	s.mu.Lock()
	s.claims = append(s.claims, r)
	s.mu.Unlock()
	if s.down.Load() {
		return dedupstore.Answer{}, errDown
	}
	apply := func() (dedupstore.Answer, error) { return dedupstore.ClaimOne(ctx, s.Store, r) }
	if s.claim != nil {
		return s.claim(apply)
	}
	return apply()
}

func (s *faultyStore) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

func (s *faultyStore) extendOne(ctx context.Context, x dedupstore.Extension) error {
	s.mu.Lock()
	s.extension++
	s.mu.Unlock()
	if s.down.Load() {
		return errDown
	}
	apply := func() error {
		return dedupstore.ExtendOne(ctx, s.Store, x)
	}
	if s.extend != nil {
		return s.extend(apply)
	}
	return apply()
}

func (s *faultyStore) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (s *faultyStore) settleOne(ctx context.Context, c dedupstore.Claim, st dedupstore.Settlement) error {
	s.mu.Lock()
	s.settled = append(s.settled, st)
	s.mu.Unlock()
	if s.down.Load() {
		return errDown
	}
	apply := func() error { return dedupstore.SettleOne(ctx, s.Store, c, st) }
	if s.settle != nil {
		return s.settle(st, apply)
	}
	return apply()
}

func newGuard(t testing.TB, store dedupstore.Store, p oncemill.Policy) *oncemill.Guard {
	t.Helper()
	if p.Logger == nil {
		p.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	g, err := oncemill.NewGuard(store, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

func key(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id}
}

func call(id string) oncemill.Call { return oncemill.Call{Key: key(id)} }

// counter is a handler that counts its runs and returns what it is told.
type counter struct {
	runs atomic.Int32
	then func(ctx context.Context, run int) (dedupstore.Outcome, error)
}

func (c *counter) run(ctx context.Context) (dedupstore.Outcome, error) {
	n := int(c.runs.Add(1))
	if c.then == nil {
		return dedupstore.Outcome{}, nil
	}
	return c.then(ctx, n)
}

func (c *counter) want(t testing.TB, runs int) {
	t.Helper()
	if got := int(c.runs.Load()); got != runs {
		t.Errorf("handler ran %d times, want %d", got, runs)
	}
}

// abandonedClaim claims as a holder does that dies afterwards.
func abandonedClaim(t testing.TB, s dedupstore.Store, id string, change ...func(*dedupstore.Request)) dedupstore.Claim {
	t.Helper()
	r := dedupstore.Request{
		Key: key(id), Owner: ids.Token(), Lease: 30 * time.Second, Retention: 24 * time.Hour, MaxAttempts: 10,
	}
	for _, c := range change {
		c(&r)
	}
	a, err := dedupstore.ClaimOne(t.Context(), s, r)
	if err != nil {
		t.Fatal(err)
	}
	if a.Status != dedupstore.AcquiredRun {
		t.Fatalf("claim: %s, want %s", a.Status, dedupstore.AcquiredRun)
	}
	return a.Claim
}

// publisher records what was published, and how many publish at a time.
type publisher struct {
	mu        sync.Mutex
	published []string
	now, most int
	fail      func(call int) error
	calls     int
	takes     time.Duration
}

func (p *publisher) publish(ctx context.Context, produced []dedupstore.Produced) error {
	p.mu.Lock()
	p.calls++
	n := p.calls
	p.now++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	time.Sleep(p.takes) // virtual
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	if p.fail != nil {
		if err := p.fail(n); err != nil {
			return err
		}
	}
	for _, m := range produced {
		p.published = append(p.published, m.ID)
	}
	return nil
}

func (p *publisher) want(t testing.TB, ids ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.published, ids) {
		t.Errorf("published %v, want %v", p.published, ids)
	}
}

func deadLetter(o dedupstore.Outcome, _ int, fence uint64) []dedupstore.Produced {
	return []dedupstore.Produced{{ID: "dead:" + string(o.Kind), Topic: "dead"}}
}

func as[E error](t testing.TB, err error) E {
	t.Helper()
	var e E
	if !errors.As(err, &e) {
		t.Fatalf("error %v (%T), want a %T", err, err, e)
	}
	return e
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
}

// look returns what people see of a record.
func (s *faultyStore) look(t testing.TB, id string) dedupstore.Record {
	t.Helper()
	seen, err := s.Store.(dedupstore.Inspector).Look(t.Context(), []dedupstore.Key{key(id)})
	if err != nil {
		t.Fatal(err)
	}
	return seen[0]
}
