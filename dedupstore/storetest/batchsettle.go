package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// trySettle settles and wants as many errors, nil or not.
func (k *kit) trySettle(settlings []dedupstore.Settling) []error {
	k.Helper()
	errs := k.Store.Settle(k.Context(), settlings)
	if len(errs) != len(settlings) {
		k.Fatalf("Settle of %d settlings returned %d errors", len(settlings), len(errs))
	}
	return errs
}

// settleMany settles all.
func (k *kit) settleMany(settlings []dedupstore.Settling) {
	k.Helper()
	for i, err := range k.trySettle(settlings) {
		if err != nil {
			k.Fatalf("settling %d of %d, of %q with %T: %v",
				i, len(settlings), settlings[i].Claim.Key.ID, settlings[i].Settlement, err)
		}
	}
}

var batchSettleCases = []testCase{
	{
		name: "batch/settles-each-as-it-is-asked",
		why:  "messages of one batch end differently, and each settlement has to reach its own record",
		test: func(k *kit) {
			publishing, none := k.run("published"), k.run("published what the claim decided")
			k.settle(publishing, finishTo(succeeded("sent"), receipt))
			k.extend(none, short)
			k.pass(short)
			last := k.request("published what the claim decided")
			last.MaxAttempts = 1
			decided := k.claim(last, dedupstore.AcquiredPublish).Claim

			o := succeeded("published at once")
			o.Produced = []dedupstore.Produced{receipt}
			k.settleMany([]dedupstore.Settling{
				{Claim: k.run("finished"), Settlement: finish(succeeded("paid"))},
				{Claim: k.run("released"), Settlement: dedupstore.Release{Reason: "database is down"}},
				{Claim: k.run("finished with messages"), Settlement: finishTo(succeeded("ordered"), receipt)},
				{Claim: publishing, Settlement: published()},
				{Claim: k.run("failed"), Settlement: finish(failed("card refused"))},
				{Claim: k.run("delayed"), Settlement: dedupstore.Release{Delay: long, Uncounted: true}},
				{
					Claim:      decided,
					Settlement: dedupstore.Published{Retention: long, Produced: []dedupstore.Produced{receipt}},
				},
				{Claim: k.run("published at once"), Settlement: finish(o)},
			})

			final := func(id string, want dedupstore.Outcome, produced ...dedupstore.Produced) {
				k.Helper()
				want.Produced = produced
				k.keptOutcome(k.claim(k.request(id), dedupstore.Done).Outcome, want)
			}
			final("finished", succeeded("paid"))
			final("failed", failed("card refused"))
			final("published", succeeded("sent"), receipt)
			final("published at once", succeeded("published at once"), receipt)
			if n := len(k.claim(k.request(last.Key.ID), dedupstore.Done).Outcome.Produced); n != 1 {
				k.Errorf("the outcome that a claim decided has %d published messages, want 1", n)
			}
			k.attempt(k.claim(k.request("released"), dedupstore.AcquiredRun), 2)
			k.found(k.claim(k.request("finished with messages"), dedupstore.Busy), dedupstore.Publishing)
			delayed := k.claim(k.request("delayed"), dedupstore.Busy)
			k.found(delayed, dedupstore.Retryable)
			k.waits(delayed)
		},
	},
	{
		name: "batch/errors-are-of-one-settling",
		why:  "a settling that is refused must neither hide behind the others nor keep them from their records",
		test: func(k *kit) {
			settled := k.run("settled")
			k.settle(settled, dedupstore.Release{})
			other := k.run("of another")
			other.Owner = newOwner()
			settlings := []dedupstore.Settling{
				{Claim: k.run("a"), Settlement: finish(succeeded("a"))},
				{Claim: other, Settlement: finish(succeeded("stolen"))},
				{Claim: k.run("b"), Settlement: finish(succeeded("b"))},
				{Claim: k.run("invalid"), Settlement: dedupstore.Finish{Outcome: succeeded("")}},
				{Claim: settled, Settlement: finish(succeeded("late"))},
				{Claim: dedupstore.Claim{}, Settlement: dedupstore.Release{}},
				{Claim: k.run("nothing"), Settlement: nil},
				{Claim: k.run("c"), Settlement: finish(succeeded("c"))},
			}
			errs := k.trySettle(settlings)
			for _, i := range []int{0, 2, 7} {
				if errs[i] != nil {
					k.Errorf("settling %d of a batch: %v", i, errs[i])
				}
			}
			k.lost(errs[1], "settling 1 of a batch, by another owner,")
			k.lost(errs[4], "settling 4 of a batch, of what was released,")
			k.invalid(errs[3], "Finish.Retention", "settling 3 of a batch")
			k.invalid(errs[5], "Key.Tenant", "settling 5 of a batch")
			k.invalid(errs[6], "Settlement", "settling 6 of a batch")
			for _, id := range []string{"a", "b", "c"} {
				k.sameOutcome(k.claim(k.request(id), dedupstore.Done).Outcome, succeeded(id))
			}
			for _, id := range []string{"of another", "invalid", "nothing"} {
				k.found(k.claim(k.request(id), dedupstore.Busy), dedupstore.Running)
			}
		},
	},
	{
		name: "batch/settlings-of-equal-keys-in-the-order-of-the-slice",
		why: "what a message produced is noted as published after its outcome was stored, though both travel in one " +
			"batch",
		test: func(k *kit) {
			c, released, finished := k.run("1"), k.run("2"), k.run("3")
			errs := k.trySettle([]dedupstore.Settling{
				{Claim: c, Settlement: finishTo(succeeded("paid"), receipt)},
				{Claim: released, Settlement: dedupstore.Release{}},
				{Claim: finished, Settlement: finish(succeeded("paid"))},
				{Claim: c, Settlement: published()},
				{Claim: released, Settlement: finish(succeeded("late"))},
				{Claim: finished, Settlement: dedupstore.Release{}},
			})
			for i, err := range errs[:4] {
				if err != nil {
					k.Errorf("settling %d of a batch: %v", i, err)
				}
			}
			k.lost(errs[4], "the finish after a release in one batch")
			k.lost(errs[5], "the release after a finish in one batch")
			k.claim(k.request("1"), dedupstore.Done)
			k.found(k.claim(k.request("2"), dedupstore.AcquiredRun), dedupstore.Retryable)
			k.claim(k.request("3"), dedupstore.Done)
		},
	},
	{
		name: "batch/repeated-settlings-change-nothing",
		why:  "a batch whose reply was lost is sent again: ErrClaimLost would say that its messages were lost, too",
		test: func(k *kit) {
			answers := k.claimMany(k.requests("1", "2", "3"), dedupstore.AcquiredRun)
			settlings := []dedupstore.Settling{
				{Claim: answers[0].Claim, Settlement: finish(succeeded("paid"))},
				{Claim: answers[1].Claim, Settlement: dedupstore.Release{}},
				{Claim: answers[2].Claim, Settlement: finishTo(succeeded("paid"), receipt)},
				{Claim: answers[2].Claim, Settlement: published()},
			}
			k.settleMany(settlings)
			k.settleMany(settlings)
			k.sameOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, succeeded("paid"))
			k.attempt(k.claim(k.request("2"), dedupstore.AcquiredRun), 2)
			k.keptOutcome(k.claim(k.request("3"), dedupstore.Done).Outcome,
				finishTo(succeeded("paid"), receipt).Outcome)
		},
	},
	{
		name: "batch/of-nothing",
		why:  "a fetch that ended without messages is a batch, too",
		test: func(k *kit) {
			k.askMany()
			k.askMany([]dedupstore.Request{}...)
			k.trySettle(nil)
			k.trySettle([]dedupstore.Settling{})
		},
	},
}

var batchContextCases = []testCase{
	{
		name: "batch/ended-context-leaves-no-result-out",
		why: "a caller that has given up must find an error at every place that is not known: nothing at all looks " +
			"like success",
		test: func(k *kit) {
			b := k.Store
			cancelled, cancel := context.WithCancel(k.Context())
			cancel()
			late, cancel := context.WithDeadline(k.Context(), time.Now().Add(-time.Second))
			defer cancel()
			ended := map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded}
			for ctx, want := range ended {
				k.knownOrEnded(b.Claim(ctx, k.requests("1, "+want.Error(), "2, "+want.Error())), 2, want)
				errs := b.Settle(ctx, []dedupstore.Settling{
					{Claim: k.run("finished, " + want.Error()), Settlement: finish(succeeded("paid"))},
					{Claim: k.run("released, " + want.Error()), Settlement: dedupstore.Release{}},
				})
				if len(errs) != 2 {
					k.Fatalf("Settle of 2 settlings returned %d errors", len(errs))
				}
				for i, err := range errs {
					if err != nil && !errors.Is(err, want) {
						k.Errorf("settling %d returned %v, want nil or %v", i, err, want)
					}
				}
			}
		},
	},
	{
		name: "batch/ended-in-the-middle",
		why: "shutdown ends a context in the middle of a batch: what was not known is asked again, and answers as " +
			"if nothing had been",
		test: func(k *kit) {
			b := k.Store
			for round, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
				ids := numbered(200)
				for i := range ids {
					ids[i] = fmt.Sprintf("%d-%s", round, ids[i])
				}
				requests := k.requests(ids...)
				ctx, cancel := context.WithCancel(k.Context())
				timer := time.AfterFunc(after, cancel)
				first := b.Claim(ctx, requests)
				timer.Stop()
				cancel()
				k.knownOrEnded(first, len(ids), context.Canceled)
				for i, a := range k.grantedAgain(requests) {
					k.attempt(a, 1)
					if first[i].Err == nil && first[i].Answer.Claim != a.Claim {
						k.Fatalf("asked again, claim %d is %+v, want the same as before, %+v", i, a.Claim,
							first[i].Answer.Claim)
					}
				}
			}
		},
	},
}

// grantedAgain wants claims to be granted, perhaps after a moment in which the server is still at what was cut off.
func (k *kit) grantedAgain(requests []dedupstore.Request) []dedupstore.Answer {
	k.Helper()
	answers := make([]dedupstore.Answer, len(requests))
	for i, r := range requests {
		for end := time.Now().Add(waitLimit); ; <-time.After(time.Millisecond) {
			a, err := dedupstore.ClaimOne(k.Context(), k.Store, r)
			if answers[i] = a; err != nil || a.Status != dedupstore.Busy || time.Now().After(end) {
				break
			}
		}
		if answers[i].Status != dedupstore.AcquiredRun {
			k.Fatalf("asked again, claim %d was answered %q, want acquired_run", i, answers[i].Status)
		}
	}
	return answers
}

// knownOrEnded wants first claims to be granted, or to have the context's error.
func (k *kit) knownOrEnded(results []dedupstore.ClaimResult, n int, want error) {
	k.Helper()
	if len(results) != n {
		k.Fatalf("Claim of %d requests returned %d results", n, len(results))
	}
	for i, r := range results {
		if r.Err == nil && r.Answer.Status != dedupstore.AcquiredRun || r.Err != nil && !errors.Is(r.Err, want) {
			k.Errorf("claim %d was answered %q, error %v, want acquired_run or %v", i, r.Answer.Status, r.Err, want)
		}
	}
}
