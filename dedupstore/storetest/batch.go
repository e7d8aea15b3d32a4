package storetest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/oncemill/oncemill/dedupstore"
)

var batchCases = slices.Concat(batchClaimCases, batchExtendCases, batchSettleCases, batchKeptCases, batchContextCases)

// askMany claims and wants as many results, whatever they are.
func (k *kit) askMany(requests ...dedupstore.Request) []dedupstore.ClaimResult {
	k.Helper()
	results := k.Store.Claim(k.Context(), requests)
	if len(results) != len(requests) {
		k.Fatalf("Claim of %d requests returned %d results", len(requests), len(results))
	}
	return results
}

// claimMany claims and wants these answers, in order; the last one stands for all that follow.
func (k *kit) claimMany(requests []dedupstore.Request, want ...dedupstore.Status) []dedupstore.Answer {
	k.Helper()
	answers := make([]dedupstore.Answer, len(requests))
	for i, result := range k.askMany(requests...) {
		w := want[min(i, len(want)-1)]
		a := result.Answer
		if result.Err != nil || a.Status != w {
			k.Fatalf("claim %d of %d, of %q, was answered %q (found %s), error %v, want %s",
				i, len(requests), requests[i].Key.ID, a.Status, a.Found, result.Err, w)
		}
		if acquired := w == dedupstore.AcquiredRun || w == dedupstore.AcquiredPublish; acquired &&
			(a.Claim.Key != requests[i].Key || a.Claim.Owner != requests[i].Owner) {
			k.Fatalf("claim %d of %d, of %q by %s, got the claim of %q by %s", i, len(requests),
				requests[i].Key.ID, requests[i].Owner, a.Claim.Key.ID, a.Claim.Owner)
		}
		answers[i] = a
	}
	return answers
}

// requests returns claims of the keys, each by an owner of its own.
func (k *kit) requests(ids ...string) []dedupstore.Request {
	requests := make([]dedupstore.Request, len(ids))
	for i, id := range ids {
		requests[i] = k.request(id)
	}
	return requests
}

// numbered returns the IDs 0 to n-1.
func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	return ids
}

var batchClaimCases = []testCase{
	{
		name: "batch/results-are-in-order",
		why:  "a result that stands at another's place gives a message the outcome or the claim of a stranger",
		test: func(k *kit) {
			requests := k.requests(numbered(20)...)
			var want []dedupstore.Status
			for i, r := range requests {
				if i%2 == 1 {
					k.settle(k.run(r.Key.ID), finish(succeeded(r.Key.ID)))
					want = append(want, dedupstore.Done)
				} else {
					want = append(want, dedupstore.AcquiredRun)
				}
			}
			for i, a := range k.claimMany(requests, want...) {
				if a.Status == dedupstore.Done {
					k.sameOutcome(a.Outcome, succeeded(requests[i].Key.ID))
					continue
				}
				k.settle(a.Claim, finish(succeeded("")))
			}
		},
	},
	{
		name: "batch/claims-are-answered-as-by-Claim",
		why:  "a batch is a faster way to ask, not another protocol",
		test: func(k *kit) {
			var requests []dedupstore.Request
			var want []dedupstore.Status
			for _, s := range situations {
				requests = append(requests, s.prepare(k, s.name))
				want = append(want, s.want.Status)
			}
			k.pass(short)
			for i, a := range k.claimMany(requests, want...) {
				situations[i].check(k, a)
			}
		},
	},
	{
		name: "batch/errors-are-of-one-claim",
		why:  "one message that cannot be claimed must not hold up the batch that it came with",
		test: func(k *kit) {
			requests := k.requests("0", "1", "2", "3", "4")
			requests[1].Lease = 0
			requests[3].Key.ID = ""
			fields := map[int]string{1: "Request.Lease", 3: "Key.ID"}
			for i, result := range k.askMany(requests...) {
				switch field := fields[i]; {
				case field != "":
					k.invalid(result.Err, field, fmt.Sprintf("claim %d of a batch", i))
				case result.Err != nil || result.Answer.Status != dedupstore.AcquiredRun:
					k.Errorf("claim %d of a batch was answered %q, error %v, want acquired_run", i,
						result.Answer.Status, result.Err)
				}
			}
		},
	},
	{
		name: "batch/equal-keys-in-the-order-of-the-slice",
		why:  "two copies of a message that are fetched together are claimed together: the first one runs",
		test: func(k *kit) {
			want := []dedupstore.Status{dedupstore.AcquiredRun, dedupstore.Busy}
			answers := k.claimMany(k.requests("1", "1"), want...)
			if answers[1].Fence != answers[0].Claim.Fence {
				k.Errorf("Busy names fence %d, want the holder's, %d", answers[1].Fence, answers[0].Claim.Fence)
			}
			k.waits(answers[1])
			want = []dedupstore.Status{
				dedupstore.AcquiredRun, dedupstore.AcquiredRun, dedupstore.Busy, dedupstore.AcquiredRun,
				dedupstore.Busy,
			}
			k.claimMany(k.requests("a", "b", "a", "c", "b", "c", "a"), want...)
		},
	},
	{
		name: "batch/duplicates-see-the-rerun-before-them",
		why:  "a duplicate behind the rerun of its failure in a batch is told of a failure that is being run again",
		test: func(k *kit) {
			answers := k.claimMany([]dedupstore.Request{k.rerun(k.failure(failed("card refused"))), k.request("1")},
				dedupstore.AcquiredRun, dedupstore.Busy)
			k.found(answers[1], dedupstore.Running)
		},
	},
	{
		name: "batch/one-owner-twice",
		why: "a claim that stands twice in a batch is one that is asked again: Busy would make its owner wait for " +
			"itself",
		test: func(k *kit) {
			r := k.request("1")
			answers := k.claimMany([]dedupstore.Request{r, r, k.request("1")}, dedupstore.AcquiredRun,
				dedupstore.AcquiredRun, dedupstore.Busy)
			if answers[0].Claim != answers[1].Claim || answers[0].Claim.Attempt != 1 {
				k.Errorf("the owner got the claims %+v and %+v, want one, of attempt 1", answers[0].Claim,
					answers[1].Claim)
			}
			k.found(answers[0], dedupstore.Absent)
			k.found(answers[1], dedupstore.Running)
		},
	},
	{
		name: "batch/one-owner-of-many-keys",
		why:  "an answer belongs to a key: by its owner, a message that has ended could get the claim of another",
		test: func(k *kit) {
			requests := k.requests(numbered(8)...)
			want := make([]dedupstore.Status, len(requests))
			for i := range requests {
				requests[i].Owner = requests[0].Owner
				if want[i] = dedupstore.AcquiredRun; i%2 == 0 {
					k.settle(k.run(requests[i].Key.ID), finish(succeeded("")))
					want[i] = dedupstore.Done
				}
			}
			k.claimMany(requests, want...)
		},
	},
	{
		name: "batch/outcomes-share-no-bytes",
		why:  "two duplicates in a batch get the same outcome, and each may change what it got",
		test: func(k *kit) {
			k.settle(k.run("1"), finish(succeeded("paid")))
			answers := k.claimMany(k.requests("1", "1"), dedupstore.Done)
			copy(answers[0].Outcome.Result, "lost")
			k.sameOutcome(answers[1].Outcome, succeeded("paid"))
		},
	},
	{
		name: "batch/repeated-claims-change-nothing",
		why:  "a batch whose reply was lost is sent again: every claim has to be answered as the first time",
		test: func(k *kit) {
			k.settle(k.run("done"), finish(succeeded("paid")))
			requests := k.requests("1", "2", "1", "done", "3")
			want := []dedupstore.Status{
				dedupstore.AcquiredRun, dedupstore.AcquiredRun, dedupstore.Busy, dedupstore.Done,
				dedupstore.AcquiredRun,
			}
			first := k.claimMany(requests, want...)
			again := k.claimMany(requests, want...)
			for i := range requests {
				if again[i].Claim != first[i].Claim && want[i] == dedupstore.AcquiredRun {
					k.Errorf("asked again, claim %d is %+v, want the same as before, %+v", i, again[i].Claim,
						first[i].Claim)
				}
			}
			for _, i := range []int{0, 1, 4} {
				k.settle(again[i].Claim, finish(succeeded("")))
			}
		},
	},
	{
		name: "batch/thousand",
		why:  "batches are as large as what a broker hands out, whatever the store sends at once",
		test: func(k *kit) {
			ids := numbered(1000)
			answers := k.claimMany(k.requests(ids...), dedupstore.AcquiredRun)
			settlings := make([]dedupstore.Settling, len(answers))
			for i, a := range answers {
				settlings[i] = dedupstore.Settling{Claim: a.Claim, Settlement: finish(succeeded(ids[i]))}
			}
			k.settleMany(settlings)
			for i, a := range k.claimMany(k.requests(ids...), dedupstore.Done) {
				k.sameOutcome(a.Outcome, succeeded(ids[i]))
			}
		},
	},
	{
		name: "batch/one-run-of-many-batches",
		why:  "processes that fetch copies of the same messages claim them in batches of different order",
		test: func(k *kit) {
			const keys, batches = 100, 20
			b := k.Store
			results := make([][]dedupstore.ClaimResult, batches)
			start := make(chan struct{})
			var group sync.WaitGroup
			for i := range results {
				ids := numbered(keys)
				ids = append(ids[i*7%keys:], ids[:i*7%keys]...)
				if i%2 == 1 {
					slices.Reverse(ids)
				}
				requests := k.requests(ids...)
				group.Go(func() {
					<-start
					results[i] = b.Claim(k.Context(), requests)
				})
			}
			close(start)
			group.Wait()
			owners := map[string]int{}
			for _, r := range slices.Concat(results...) {
				switch {
				case r.Err != nil:
					k.Fatalf("claim: %v", r.Err)
				case r.Answer.Status == dedupstore.AcquiredRun:
					owners[r.Answer.Claim.Key.ID]++
				case r.Answer.Status != dedupstore.Busy:
					k.Fatalf("a claim was answered %s, want acquired_run or busy", r.Answer.Status)
				}
			}
			for _, id := range numbered(keys) {
				if owners[id] != 1 {
					k.Errorf("key %q has %d owners, want 1", id, owners[id])
				}
			}
		},
	},
}
