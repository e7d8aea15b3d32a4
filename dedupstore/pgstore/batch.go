package pgstore

import (
	"context"

	"github.com/oncemill/oncemill/dedupstore"
)

// ClaimMany implements [dedupstore.Batcher].
func (f *form) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	var asked []int
	for i, r := range requests {
		if results[i].Err = r.Validate(); results[i].Err == nil {
			asked = append(asked, i)
		}
	}
	for ; len(asked) > 0; asked = asked[min(maxBatch, len(asked)):] {
		part := asked[:min(maxBatch, len(asked))]
		questions := make([]*dedupstore.Request, len(part))
		for j, i := range part {
			questions[j] = &requests[i]
		}
		answers, errs := inBatch(ctx, &f.claims, questions)
		for j, i := range part {
			a, err := answers[j], errs[j]
			if err == nil && a.status == contended {
				a, err = f.claimAgain(ctx, &requests[i])
			}
			if err != nil {
				results[i].Err = f.store.failed("claim", err)
				continue
			}
			results[i].Answer, results[i].Err = a.read(&requests[i])
		}
	}
	return results
}

// SettleMany implements [dedupstore.Batcher].
func (f *form) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	var asked []*settling
	var places []int
	for i, one := range settlings {
		s, err := newSettling(idOf(one.Claim.Key.String()), one.Claim, one.Settlement)
		if errs[i] = err; err == nil {
			asked, places = append(asked, s), append(places, i)
		}
	}
	for len(asked) > 0 {
		n := min(maxBatch, len(asked))
		f.settleBatch(ctx, asked[:n], places[:n], errs)
		asked, places = asked[n:], places[n:]
	}
	return errs
}

func (f *form) settleBatch(ctx context.Context, part []*settling, places []int, errs []error) {
	verdicts, failed := inBatch(ctx, &f.settles, part)
	for j, i := range places {
		first := true
		errs[i] = f.verdict(ctx, "settle", func() (string, error) {
			if first {
				first = false
				return verdicts[j], failed[j]
			}
			return f.settles.do(ctx, part[j])
		})
	}
}

// inBatch runs the operations of one caller in one statement.
func inBatch[Q, A any](ctx context.Context, l *lane[Q, A], questions []Q) ([]A, []error) {
	answers, errs := l.each(ctx, questions)
	for i, err := range errs {
		if err != nil && ctx.Err() != nil {
			errs[i] = ctx.Err()
		}
	}
	return answers, errs
}
