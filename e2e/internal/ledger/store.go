package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// Claim asks the store, and notes the runs that it grants.
func (l *Ledger) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	l.mu.Lock()
	l.sum.Claims += len(requests)
	for _, r := range requests {
		if a := l.of(r.Key.ID); a.asked[r.Owner].IsZero() {
			a.asked[r.Owner] = time.Now()
		}
	}
	l.mu.Unlock()
	results := l.Store.Claim(ctx, requests)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range requests {
		l.answered(r, &results[i])
	}
	return results
}

// answered notes how the store answered a claim. The ledger is locked.
func (l *Ledger) answered(r dedupstore.Request, result *dedupstore.ClaimResult) {
	l.failed("claim", result.Err)
	answer, a := &result.Answer, l.of(r.Key.ID)
	if result.Err != nil || answer.Status != dedupstore.AcquiredRun || a.run(answer.Claim.Fence) != nil {
		return
	}
	run := &Run{
		Key: answer.Claim.Key, ID: r.Key.ID, Fence: answer.Claim.Fence, Attempt: answer.Claim.Attempt,
		Found: answer.Found, Asked: a.asked[r.Owner], Granted: time.Now(), Until: a.asked[r.Owner].Add(r.Lease),
	}
	l.add(a, run)
	l.write(entry{Run: run})
}

// mostFailures is how many texts of errors the ledger keeps. Some name a port, and so are never the same.
const mostFailures = 1000

// failed notes an error that a caller got. The ledger is locked.
func (l *Ledger) failed(operation string, err error) {
	if err != nil && !errors.Is(err, dedupstore.ErrClaimLost) && !errors.Is(err, context.Canceled) {
		text := operation + ": " + err.Error()
		if f, known := l.failures[text]; known || len(l.failures) < mostFailures {
			l.failures[text] = Failure{err, f.Times + 1}
		}
	}
}

// Extend asks the store, and notes which leases it extends.
func (l *Ledger) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	sent := time.Now()
	errs := l.Store.Extend(ctx, extensions)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, x := range extensions {
		l.failed("extend", errs[i])
		if r := l.of(x.Claim.Key.ID).run(x.Claim.Fence); errs[i] == nil && r != nil {
			r.Until = sent.Add(x.Lease)
			l.sum.Renewals++
			l.write(entry{Run: r})
		}
	}
	return errs
}

// Settle asks the store, and notes how it ends the runs.
func (l *Ledger) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	sent := time.Now()
	errs := l.Store.Settle(ctx, settlings)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, s := range settlings {
		l.failed("settle", errs[i])
		if r := l.of(s.Claim.Key.ID).run(s.Claim.Fence); r != nil {
			r.settled(s.Settlement, sent, errs[i])
			l.write(entry{Run: r})
		}
	}
	return errs
}

// settled notes how the store answered a settlement.
//
// A release may end the lease from when it was sent. A run with an effect is released if its handler failed, or was
// cancelled while it waited for the answer to its effect.
func (r *Run) settled(s dedupstore.Settlement, sent time.Time, err error) {
	switch s.(type) {
	case dedupstore.Release:
		if sent.Before(r.Until) {
			r.Until = sent
		}
		if err == nil && r.End == "" {
			r.End = Released
		}
	case dedupstore.Finish:
		switch {
		case err == nil:
			r.End = Recorded
		case errors.Is(err, dedupstore.ErrClaimLost):
			r.End = Refused
		default:
			r.End = Unrecorded
		}
	}
}

// Publish takes dead letters.
func (l *Ledger) Publish(_ context.Context, messages ...producer.Message) error {
	for _, m := range messages {
		l.DeadLettered(m.Header.Get(producer.HeaderOriginalID), 1)
	}
	return nil
}
