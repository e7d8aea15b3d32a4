package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/bench/internal/filled"
	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore"
)

// together is how many operations a call of a store has, and callsAtOnce how many calls there are.
const (
	together    = 32
	callsAtOnce = 4
)

// records measures what a store does beside many records. Most operations travel together, as those of a guard do.
var records = kit.Records(filled.Stores, []kit.Operation[*filled.Store]{
	{Name: "claim", Do: func(ctx context.Context, s *filled.Store) (int, time.Duration, error) {
		_, n, took, err := claimFresh(ctx, s)
		return n, took, err
	}},
	{Name: "duplicate", Do: func(ctx context.Context, s *filled.Store) (int, time.Duration, error) {
		return atOnce(func() error {
			requests := make([]dedupstore.Request, together)
			for i := range requests {
				requests[i] = filled.Request(s.Done())
			}
			_, err := answers(s.Claim(ctx, requests), dedupstore.Done)
			return err
		})
	}},
	{Name: "settle", Do: afterClaims(func(ctx context.Context, s *filled.Store, c []dedupstore.Claim) []error {
		return s.Settle(ctx, settlings(c, filled.Succeeded))
	})},
	{Name: "extend", Do: afterClaims(func(ctx context.Context, s *filled.Store, c []dedupstore.Claim) []error {
		extensions := make([]dedupstore.Extension, len(c))
		for i := range c {
			extensions[i] = dedupstore.Extension{Claim: c[i], Lease: lease, Started: true}
		}
		return s.Extend(ctx, extensions)
	})},
	{Name: "release", Do: afterClaims(func(ctx context.Context, s *filled.Store, c []dedupstore.Claim) []error {
		return s.Settle(ctx, settlings(c, dedupstore.Release{Delay: time.Hour, Reason: "the bank did not answer"}))
	})},
	{Name: "inbox run", Do: runInInbox},
	{Name: "clean", Do: clean},
	{Name: "list", Do: list},
})

// atOnce makes calls side by side.
func atOnce(call func() error) (done int, took time.Duration, err error) {
	errs := make([]error, callsAtOnce)
	begun := time.Now()
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() { errs[i] = call() })
	}
	calls.Wait()
	return callsAtOnce * together, time.Since(begun), errors.Join(errs...)
}

func claimFresh(
	ctx context.Context, s *filled.Store,
) (claims [][]dedupstore.Claim, n int, took time.Duration, err error) {
	var mu sync.Mutex
	n, took, err = atOnce(func() error {
		requests := make([]dedupstore.Request, together)
		for i := range requests {
			requests[i] = filled.Fresh()
		}
		granted, err := answers(s.Claim(ctx, requests), dedupstore.AcquiredRun)
		mu.Lock()
		defer mu.Unlock()
		claims = append(claims, granted)
		return err
	})
	return claims, n, took, err
}

func answers(results []dedupstore.ClaimResult, want dedupstore.Status) ([]dedupstore.Claim, error) {
	claims := make([]dedupstore.Claim, len(results))
	for i, r := range results {
		if r.Err != nil || r.Answer.Status != want {
			return nil, fmt.Errorf("a claim is answered %q, want %q: %w", r.Answer.Status, want, r.Err)
		}
		claims[i] = r.Answer.Claim
	}
	return claims, nil
}

// afterClaims measures what comes after claims.
func afterClaims(
	do func(context.Context, *filled.Store, []dedupstore.Claim) []error,
) func(context.Context, *filled.Store) (int, time.Duration, error) {
	return func(ctx context.Context, s *filled.Store) (int, time.Duration, error) {
		claims, _, _, err := claimFresh(ctx, s)
		if err != nil {
			return 0, 0, err
		}
		next := make(chan []dedupstore.Claim, len(claims))
		for _, c := range claims {
			next <- c
		}
		return atOnce(func() error { return errors.Join(do(ctx, s, <-next)...) })
	}
}

func settlings(claims []dedupstore.Claim, settlement dedupstore.Settlement) []dedupstore.Settling {
	all := make([]dedupstore.Settling, len(claims))
	for i, c := range claims {
		all[i] = dedupstore.Settling{Claim: c, Settlement: settlement}
	}
	return all
}

// runInInbox makes whole runs of a guard, with an effect.
func runInInbox(ctx context.Context, s *filled.Store) (int, time.Duration, error) {
	if s.Inbox == nil {
		return 0, 0, nil
	}
	guard, err := oncemill.NewGuard(s.Inbox, oncemill.Policy{})
	if err != nil {
		return 0, 0, err
	}
	return atOnce(func() error {
		for range together {
			key := filled.Fresh().Key
			_, err := guard.Run(ctx, oncemill.Call{Key: key}, func(ctx context.Context) (dedupstore.Outcome, error) {
				return dedupstore.Outcome{}, s.Effect(ctx, key.ID)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// clean removes a page of records.
func clean(ctx context.Context, s *filled.Store) (int, time.Duration, error) {
	if s.Clean == nil {
		return 0, 0, nil
	}
	if err := s.Expire(ctx); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	n, err := s.Clean(ctx, filled.Seeds)
	return n, time.Since(begun), err
}

// list reads a page, the next one each time.
func list(ctx context.Context, s *filled.Store) (int, time.Duration, error) {
	begun := time.Now()
	page, err := s.List(ctx, dedupstore.Filter{}, s.Next)
	took := time.Since(begun)
	s.Next = page.Next
	return page.Looked, took, err
}
