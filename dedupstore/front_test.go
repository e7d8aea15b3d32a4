package dedupstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
)

// A spy is a store whose operations are recorded, and fail or wait on request.
type spy struct {
	dedupstore.Store
	before func(ctx context.Context, operation string) error // nil: nothing

	mu      sync.Mutex
	done    []string // operations, in order
	settled []dedupstore.Settlement
}

func (s *spy) note(ctx context.Context, operation string) error {
	s.mu.Lock()
	s.done = append(s.done, operation)
	s.mu.Unlock()
	if s.before != nil {
		return s.before(ctx, operation)
	}
	return nil
}

// count is how often an operation was asked for.
func (s *spy) count(operation string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, done := range s.done {
		if done == operation {
			n++
		}
	}
	return n
}

func (s *spy) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if err := s.note(ctx, "claim"); err != nil {
		return dedupstore.Answer{}, err
	}
	return s.Store.Claim(ctx, r)
}

func (s *spy) Extend(ctx context.Context, c dedupstore.Claim, lease time.Duration) error {
	if err := s.note(ctx, "extend"); err != nil {
		return err
	}
	return s.Store.Extend(ctx, c, lease)
}

func (s *spy) Settle(ctx context.Context, c dedupstore.Claim, st dedupstore.Settlement) error {
	if err := s.note(ctx, "settle"); err != nil {
		return err
	}
	s.mu.Lock()
	s.settled = append(s.settled, st)
	s.mu.Unlock()
	return s.Store.Settle(ctx, c, st)
}

// A frontRig is a front over stores in memory.
type frontRig struct {
	*dedupstore.FrontStore
	t     testing.TB
	cheap *spy // its Store may be replaced: it has lost everything then
	truth *spy // records of the inbox
	inbox *storetest.MemoryInbox
}

func newFront(t testing.TB) *frontRig {
	t.Helper()
	return newFrontWith(t, dedupstore.FrontConfig{})
}

func newFrontWith(t testing.TB, c dedupstore.FrontConfig) *frontRig {
	t.Helper()
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	r := &frontRig{t: t, cheap: &spy{Store: newMemory(t, 0)}, truth: &spy{Store: newMemory(t, 0)}}
	r.inbox = storetest.NewMemoryInbox(r.truth)
	var err error
	r.FrontStore, err = dedupstore.NewFront(r.cheap, r.inbox, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// loses makes the cheap store lose everything.
func (f *frontRig) loses() { f.cheap.Store = newMemory(f.t, 0) }

var owners atomic.Int64

func frontRequest(id string) dedupstore.Request {
	r := request(id)
	r.Owner = fmt.Sprintf("owner-%016d", owners.Add(1))
	return r
}

// claim wants an answer, and says by how many claims of the inbox it was found.
func (f *frontRig) claim(r dedupstore.Request, want dedupstore.Status) (dedupstore.Answer, int) {
	f.t.Helper()
	before := f.truth.count("claim")
	a, err := f.Claim(f.t.Context(), r)
	if err != nil || a.Status != want {
		f.t.Fatalf("a claim was answered %s, %v; want %s", a.Status, err, want)
	}
	return a, f.truth.count("claim") - before
}

// pays makes a run of a claim, with an effect.
func (f *frontRig) pays(c dedupstore.Claim, produced ...dedupstore.Produced) error {
	return f.InTx(f.t.Context(), c, func(ctx context.Context) (dedupstore.Settlement, error) {
		return dedupstore.Finish{Outcome: paid(produced...), Retention: time.Hour}, f.inbox.Write(ctx, c.Key.ID)
	})
}

func paid(produced ...dedupstore.Produced) dedupstore.Outcome {
	return dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid"), Produced: produced}
}

// done is a key that was paid.
func (f *frontRig) done(id string) dedupstore.Claim {
	f.t.Helper()
	r := frontRequest(id)
	r.Trace = "trace of the run"
	a, _ := f.claim(r, dedupstore.AcquiredRun)
	if err := f.pays(a.Claim); err != nil {
		f.t.Fatal(err)
	}
	return a.Claim
}

func (f *frontRig) effects(id string, want int) {
	f.t.Helper()
	if got := f.inbox.All()[id]; got != want {
		f.t.Errorf("%d effects of %s, want %d", got, id, want)
	}
}

// virtual runs a test in virtual time.
func virtual(t *testing.T, test func(t *testing.T, f *frontRig)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newFront(t)) })
}

func TestFront_KeepsTheContract(t *testing.T) {
	t.Parallel()
	storetest.RunVirtual(t, func(t *testing.T) storetest.Subject { return storetest.Subject{Store: newFront(t)} })
	storetest.RunInboxVirtual(t, func(t *testing.T) storetest.InboxSubject {
		f := newFront(t)
		return storetest.InboxSubject{Inbox: f, Effect: f.inbox.Write, Effects: f.inbox.Count}
	})
}

var errCheap = errors.New("cheap store is down")

// Whatever a cheap store fails at, the front is the inbox.
func TestFront_KeepsTheContractWhenTheCheapStore(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(f *frontRig){
		"is down": func(f *frontRig) {
			f.cheap.before = func(context.Context, string) error { return errCheap }
		},
		"is down most of the time": func(f *frontRig) {
			var n atomic.Int32
			f.cheap.before = func(context.Context, string) error {
				if n.Add(1)%5 != 0 {
					return errCheap
				}
				return nil
			}
		},
		"forgets at once": func(f *frontRig) { f.cheap.Store = amnesiac{f.t} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := func(t *testing.T) (*frontRig, dedupstore.Transactor) {
				f := newFront(t)
				fault(f)
				return f, &frontless{Transactor: f, fronts: map[dedupstore.Claim]dedupstore.FrontClaim{}}
			}
			storetest.RunVirtual(t, func(t *testing.T) storetest.Subject {
				_, s := open(t)
				return storetest.Subject{Store: s}
			})
			storetest.RunInboxVirtual(t, func(t *testing.T) storetest.InboxSubject {
				f, s := open(t)
				return storetest.InboxSubject{Inbox: s, Effect: f.inbox.Write, Effects: f.inbox.Count}
			})
		})
	}
}

// A frontless store keeps what its claims hold of the cheap store to itself: one that forgets grants another fence each
// time.
type frontless struct {
	dedupstore.Transactor
	mu     sync.Mutex
	fronts map[dedupstore.Claim]dedupstore.FrontClaim
}

func (s *frontless) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	a, err := s.Transactor.Claim(ctx, r)
	front := a.Claim.Front
	a.Claim.Front = dedupstore.FrontClaim{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fronts[a.Claim] = front
	return a, err
}

func (s *frontless) with(c dedupstore.Claim) dedupstore.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Front = s.fronts[c]
	return c
}

func (s *frontless) Extend(ctx context.Context, c dedupstore.Claim, lease time.Duration) error {
	return s.Transactor.Extend(ctx, s.with(c), lease)
}

func (s *frontless) Settle(ctx context.Context, c dedupstore.Claim, st dedupstore.Settlement) error {
	return s.Transactor.Settle(ctx, s.with(c), st)
}

func (s *frontless) InTx(ctx context.Context, c dedupstore.Claim, work func(context.Context) (dedupstore.Settlement, error)) error {
	return s.Transactor.InTx(ctx, s.with(c), work)
}

// An amnesiac forgets everything at once.
type amnesiac struct{ t testing.TB }

func (a amnesiac) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	return newMemory(a.t, 0).Claim(ctx, r)
}

func (a amnesiac) Extend(ctx context.Context, c dedupstore.Claim, lease time.Duration) error {
	return newMemory(a.t, 0).Extend(ctx, c, lease)
}

func (a amnesiac) Settle(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	return newMemory(a.t, 0).Settle(ctx, c, s)
}
