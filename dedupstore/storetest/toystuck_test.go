package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

// brokenStuck are rules of stores beside what is stuck, as broken is of others.
var brokenStuck = map[string][]string{
	"stuck-waits-for-the-lock": {
		"stuck/locked-record", "stuck/locked-after-its-lease", "stuck/record-that-is-being-made",
	},
	"stuck-fails-its-neighbours":     {"stuck/locked-record"},
	"stuck-is-a-lost-claim":          {"stuck/locked-record"},
	"stuck-is-never-stored":          {"stuck/locked-record"},
	"stuck-is-absent":                {"stuck/locked-after-its-lease", "stuck/record-that-is-being-made"},
	"stuck-takes-over-with-no-fence": {"stuck/locked-after-its-lease"},
	"stuck-ignores-its-deadline":     {"stuck/late-answer-to-a-commit", "stuck/vanished-host"},
	"stuck-holds-up-the-next":        {"stuck/late-answer-to-a-commit"},
	"stuck-takes-its-time-for-lost":  {"stuck/late-answer-to-a-commit"},
	"stuck-keeps-what-vanished":      {"stuck/vanished-host"},
}

// A stuckToy is a toy whose transactions can stand still.
type stuckToy struct {
	*toy
	locked map[string]bool

	waiting sync.Mutex
	stalled chan struct{} // the next settlement waits for it; nil: it does not
	arrives bool
	waited  chan struct{} // a settlement waits for it; nil: none does
}

var errToyLocked = errors.New("toy: the record is locked")

func newStuckToy(rule string) *stuckToy {
	return &stuckToy{toy: newToy(rule), locked: map[string]bool{}}
}

func (s *stuckToy) subject() Subject {
	return Subject{Store: s, Lock: s.lock, Stall: s.stall}
}

func (s *stuckToy) lock(k dedupstore.Key) (release func()) {
	s.set(k, true)
	return func() { s.set(k, false) }
}

func (s *stuckToy) set(k dedupstore.Key, locked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locked[s.name(k)] = locked
}

func (s *stuckToy) isLocked(k dedupstore.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.locked[s.name(k)]
}

func (s *stuckToy) stall(arrives bool) (over func()) {
	stalled := make(chan struct{})
	s.waiting.Lock()
	defer s.waiting.Unlock()
	s.stalled, s.arrives = stalled, arrives
	return sync.OnceFunc(func() { close(stalled) })
}

// unlocked waits for a lock, if the toy is broken so.
func (s *stuckToy) unlocked(ctx context.Context, k dedupstore.Key) error {
	for s.is("stuck-waits-for-the-lock") && s.isLocked(k) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return nil
}

func (s *stuckToy) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	for i, r := range requests {
		if err := s.unlocked(ctx, r.Key); err != nil {
			results[i].Err = err
			continue
		}
		if s.isLocked(r.Key) && !s.is("stuck-is-absent") {
			results[i].Answer = dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running}
			continue
		}
		results[i] = s.toy.Claim(ctx, []dedupstore.Request{r})[0]
		if s.is("stuck-takes-over-with-no-fence") {
			results[i].Answer.Claim.Fence = 1
		}
	}
	return results
}

func (s *stuckToy) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := make([]error, len(extensions))
	for i, x := range extensions {
		errs[i] = s.change(ctx, x.Claim.Key, func() error { return s.toy.Extend(ctx, []dedupstore.Extension{x})[0] })
	}
	return s.joined(errs)
}

func (s *stuckToy) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	for i, x := range settlings {
		errs[i] = s.change(ctx, x.Claim.Key, func() error { return s.toy.Settle(ctx, []dedupstore.Settling{x})[0] })
		if err := s.answered(ctx, x.Claim.Key); err != nil {
			errs[i] = err
		}
	}
	return s.joined(errs)
}

// change changes a record unless it is locked.
func (s *stuckToy) change(ctx context.Context, k dedupstore.Key, do func() error) error {
	if err := s.unlocked(ctx, k); err != nil {
		return err
	}
	s.waiting.Lock()
	lost := s.stalled != nil && !s.arrives
	if lost && s.is("stuck-keeps-what-vanished") {
		s.set(k, true)
	}
	s.waiting.Unlock()
	switch {
	case s.isLocked(k) && s.is("stuck-is-a-lost-claim"):
		return dedupstore.ErrClaimLost
	case s.isLocked(k) && s.is("stuck-is-never-stored"):
		return nil
	case s.isLocked(k):
		return errToyLocked
	case lost:
		return nil
	}
	return do()
}

// answered waits for the answer of a settlement.
func (s *stuckToy) answered(ctx context.Context, k dedupstore.Key) error {
	s.waiting.Lock()
	defer s.waiting.Unlock()
	stalled := s.stalled
	if s.stalled = nil; stalled != nil {
		s.waited = stalled
	} else if s.is("stuck-holds-up-the-next") {
		stalled = s.waited
	}
	if stalled == nil {
		return nil
	}
	end := ctx.Done()
	if s.is("stuck-ignores-its-deadline") {
		end = nil
	}
	select {
	case <-stalled:
		return nil
	case <-end:
		if s.is("stuck-takes-its-time-for-lost") {
			return dedupstore.ErrClaimLost
		}
		return ctx.Err()
	case <-time.After(time.Hour): // of virtual time
		return errToyLocked
	}
}

func (s *stuckToy) joined(errs []error) []error {
	if s.is("stuck-fails-its-neighbours") {
		all := errors.Join(errs...)
		for i := range errs {
			errs[i] = all
		}
	}
	return errs
}

func TestRunStuck_AcceptsAStoreThatKeepsTheContract(t *testing.T) {
	t.Parallel()
	for _, c := range stuckCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { c.check(t, newStuckToy("").subject()) })
		})
	}
}

func TestRunStuck_RejectsABrokenStore(t *testing.T) {
	t.Parallel()
	for rule, names := range brokenStuck {
		for _, name := range names {
			t.Run("broken/"+rule+"/"+name, func(t *testing.T) {
				t.Parallel()
				i := slices.IndexFunc(stuckCases, func(c testCase) bool { return c.name == name })
				synctest.Test(t, func(t *testing.T) {
					r := recorder.Record(t, func(tb testing.TB) { stuckCases[i].check(tb, newStuckToy(rule).subject()) })
					if !r.Failed() {
						t.Errorf("%s accepts a store that breaks the rule", name)
					}
				})
			})
		}
	}
}
