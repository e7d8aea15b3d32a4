package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recorder"
)

// An odd store keeps the contract in ways that no other store of this project does.
type odd struct{ dedupstore.Store }

// Fences are odd numbers, errors are wrapped, times are rounded down, and an operation whose context has ended happens
// all the same.
func (s odd) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	r.Rerun = inner(r.Rerun)
	a, err := dedupstore.ClaimOne(context.WithoutCancel(ctx), s.Store, r)
	if err := s.wrapped(ctx, err); err != nil {
		return dedupstore.Answer{}, err
	}
	if a.Status == dedupstore.Busy || a.Status == dedupstore.Mismatch { // these need not be empty
		a.Outcome = succeeded("nobody may look")
		a.Claim = dedupstore.Claim{Key: r.Key, Owner: r.Owner}
	}
	a.Fence, a.Claim.Fence = outer(a.Fence), outer(a.Claim.Fence)
	a.Wait = a.Wait.Truncate(10 * time.Millisecond)
	a.Age = a.Age.Truncate(time.Millisecond)
	if a.Outcome.Exhausted && strings.Contains(a.Outcome.Reason, "attempts spent") {
		a.Outcome.Reason = "three strikes"
	}
	if a.Outcome.Result == nil {
		a.Outcome.Result = []byte{}
	}
	for i, p := range a.Outcome.Produced {
		if a.Status == dedupstore.Done {
			p.Key = "" // only IDs and topics need be kept
		}
		if p.Header == nil {
			p.Header = map[string]string{}
		}
		a.Outcome.Produced[i] = p
	}
	return a, nil
}

func (s odd) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

func (s odd) extendOne(ctx context.Context, x dedupstore.Extension) error {
	x.Claim.Fence = inner(x.Claim.Fence)
	return s.wrapped(ctx, dedupstore.ExtendOne(context.WithoutCancel(ctx), s.Store, x))
}

func (s odd) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	c.Fence = inner(c.Fence)
	return s.wrapped(ctx, dedupstore.SettleOne(context.WithoutCancel(ctx), s.Store, c, settlement))
}

// Batches are made backwards, but for equal keys.
func (s odd) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	if len(requests) == 0 {
		return nil
	}
	results := make([]dedupstore.ClaimResult, len(requests))
	backwards(len(requests), func(i int) dedupstore.Key { return requests[i].Key }, func(i int) {
		results[i].Answer, results[i].Err = s.claimOne(ctx, requests[i])
	})
	return results
}

func (s odd) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	if len(settlings) == 0 {
		return nil
	}
	errs := make([]error, len(settlings))
	backwards(len(settlings), func(i int) dedupstore.Key { return settlings[i].Claim.Key }, func(i int) {
		errs[i] = s.settleOne(ctx, settlings[i].Claim, settlings[i].Settlement)
	})
	return errs
}

// backwards does the last key's operations first, but those of one key in their order.
func backwards(n int, key func(int) dedupstore.Key, do func(int)) {
	made := map[dedupstore.Key]bool{}
	for i := n - 1; i >= 0; i-- {
		if made[key(i)] {
			continue
		}
		made[key(i)] = true
		for j := range i + 1 {
			if key(j) == key(i) {
				do(j)
			}
		}
	}
}

func (s odd) wrapped(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*dedupstore.InvalidError](err); !ok && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("odd: %w", err)
}

// outer and inner turn a fence into an odd number and back. Those that were never granted become 1.
func outer(fence uint64) uint64 { return 2*fence + 1 }

func inner(fence uint64) uint64 {
	switch {
	case fence == 0:
		return 0
	case fence == 1 || fence%2 == 0:
		return 1
	}
	return fence / 2
}

func TestRun_AcceptsAnOddStoreThatKeepsTheContract(t *testing.T) {
	t.Parallel()
	RunVirtual(t, func(t *testing.T) Subject {
		m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return Subject{Store: odd{m}}
	})
}

func TestWithin_GivesASlowMachineMoreTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var limits []time.Duration
		r := recorder.Record(t, func(tb testing.TB) {
			newKit(tb, Subject{}).within(time.Second, func(k *kit, limit time.Duration) {
				limits = append(limits, limit)
				<-time.After(3 * time.Second) // what it is slow at
				if limit < 3*time.Second {
					k.Fatal("too late")
				}
			})
		})
		if r.Failed() || len(limits) != 2 {
			t.Errorf("failed: %t after limits %v, want success at the second", r.Failed(), limits)
		}
	})
}

func TestWithin_DoesNotRepeatAFailureThatCameInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		r := recorder.Record(t, func(tb testing.TB) {
			newKit(tb, Subject{}).within(time.Second, func(k *kit, _ time.Duration) {
				tries++
				k.Error("broken")
			})
		})
		if !r.Failed() || tries != 1 {
			t.Errorf("failed: %t after %d tries, want a failure at the first", r.Failed(), tries)
		}
	})
}
