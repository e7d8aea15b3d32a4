package dedupstore

import "context"

// ClaimOne asks a store for one claim.
func ClaimOne(ctx context.Context, s Store, r Request) (Answer, error) {
	result := s.Claim(ctx, []Request{r})[0]
	return result.Answer, result.Err
}

// ExtendOne renews one lease.
func ExtendOne(ctx context.Context, s Store, x Extension) error {
	return s.Extend(ctx, []Extension{x})[0]
}

// SettleOne settles one claim.
func SettleOne(ctx context.Context, s Store, c Claim, settlement Settlement) error {
	return s.Settle(ctx, []Settling{{c, settlement}})[0]
}

// InTxOne runs work in a transaction of a claim's own.
func InTxOne(
	ctx context.Context, inbox Transactor, c Claim, work func(ctx context.Context) (Settlement, error),
) error {
	_, err := inbox.InTx(ctx, []TxRun{{Claim: c}}, func(ctx context.Context, _ []Claim) ([]Settlement, error) {
		settlement, err := work(ctx)
		return []Settlement{settlement}, err
	})
	return err
}

// ClaimEach makes Store.Claim of a function that makes one claim.
func ClaimEach(
	ctx context.Context, requests []Request, one func(context.Context, Request) (Answer, error),
) []ClaimResult {
	results := make([]ClaimResult, len(requests))
	for i, r := range requests {
		results[i].Answer, results[i].Err = one(ctx, r)
	}
	return results
}

// ExtendEach makes Store.Extend of a function that makes one extension.
func ExtendEach(ctx context.Context, extensions []Extension, one func(context.Context, Extension) error) []error {
	errs := make([]error, len(extensions))
	for i, x := range extensions {
		errs[i] = one(ctx, x)
	}
	return errs
}

// SettleEach makes Store.Settle of a function that makes one settlement.
func SettleEach(
	ctx context.Context, settlings []Settling, one func(context.Context, Claim, Settlement) error,
) []error {
	errs := make([]error, len(settlings))
	for i, s := range settlings {
		errs[i] = one(ctx, s.Claim, s.Settlement)
	}
	return errs
}
