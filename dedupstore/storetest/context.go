package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var contextCases = []testCase{
	{
		name: "context/ended-is-an-error",
		why:  "a caller that has given up must not be told that it lost its claim, nor that all is well",
		test: func(k *kit) {
			cancelled, cancel := context.WithCancel(k.Context())
			cancel()
			late, cancel := context.WithDeadline(k.Context(), time.Now().Add(-time.Second))
			defer cancel()
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			beat := dedupstore.Extension{Claim: c, Lease: long, Started: true}
			ended := map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded}
			for ctx, want := range ended {
				_, err := dedupstore.ClaimOne(ctx, k.Store, k.request("other"))
				for what, err := range map[string]error{
					"claim":     err,
					"extend":    dedupstore.ExtendOne(ctx, k.Store, beat),
					"finish":    dedupstore.SettleOne(ctx, k.Store, c, finish(succeeded("paid"))),
					"release":   dedupstore.SettleOne(ctx, k.Store, c, dedupstore.Release{}),
					"published": dedupstore.SettleOne(ctx, k.Store, c, published()),
				} {
					if !errors.Is(err, want) || errors.Is(err, dedupstore.ErrClaimLost) {
						k.Errorf("%s returned %v, want %v", what, err, want)
					}
				}
			}
		},
	},
	{
		name: "context/ended-operations-can-be-repeated",
		why:  "shutdown ends a context in the middle: the same operation, sent again, answers as if nothing had been",
		test: func(k *kit) {
			ctx, cancel := context.WithCancel(k.Context())
			cancel()
			r := k.request("1")
			_, _ = dedupstore.ClaimOne(ctx, k.Store, r) // it may or may not have happened; so it is with those below
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			if c.Attempt != 1 {
				k.Errorf("attempt is %d, want 1", c.Attempt)
			}
			_ = dedupstore.ExtendOne(ctx, k.Store, dedupstore.Extension{Claim: c, Lease: long, Started: true})
			k.extend(c, long)
			_ = dedupstore.SettleOne(ctx, k.Store, c, finishTo(succeeded("paid"), receipt))
			k.settle(c, finishTo(succeeded("paid"), receipt))
			_ = dedupstore.SettleOne(ctx, k.Store, c, published())
			k.settle(c, published())
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, dedupstore.Outcome{
				Kind: dedupstore.Succeeded, Result: []byte("paid"), Produced: []dedupstore.Produced{receipt},
			})
		},
	},
}
