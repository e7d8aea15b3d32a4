package keytest

import (
	"context"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Broken is a store some of whose operations fail.
type Broken struct {
	dedupstore.Store
	Claiming, Settling error // nil: it works
}

// Claim implements dedupstore.Store.
func (b Broken) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, b.claimOne)
}

func (b Broken) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if b.Claiming != nil {
		return dedupstore.Answer{}, b.Claiming
	}
	return dedupstore.ClaimOne(ctx, b.Store, r)
}

// Settle implements dedupstore.Store.
func (b Broken) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, b.settleOne)
}

func (b Broken) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if b.Settling != nil {
		return b.Settling
	}
	return dedupstore.SettleOne(ctx, b.Store, c, s)
}
