package dedupstore

import "context"

var _ Batcher = (*Memory)(nil)

// ClaimMany implements [Batcher].
func (m *Memory) ClaimMany(ctx context.Context, requests []Request) []ClaimResult {
	results := make([]ClaimResult, len(requests))
	for i, r := range requests {
		results[i].Answer, results[i].Err = m.Claim(ctx, r)
	}
	return results
}

// SettleMany implements [Batcher].
func (m *Memory) SettleMany(ctx context.Context, settlings []Settling) []error {
	errs := make([]error, len(settlings))
	for i, s := range settlings {
		errs[i] = m.Settle(ctx, s.Claim, s.Settlement)
	}
	return errs
}
