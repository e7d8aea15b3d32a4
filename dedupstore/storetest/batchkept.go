package storetest

import "github.com/oncemill/oncemill/dedupstore"

// batchKeptCases look at records a while after a batch wrote them: what was asked for is not seen at once.
var batchKeptCases = []testCase{
	{
		name: "batch/claims-are-kept-as-asked",
		why: "what a batch drops of a claim, its lease, its retention or its trace, is missed when the run has " +
			"crashed",
		test: func(k *kit) {
			const another = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
			requests := k.requests("held", "crashed")
			requests[0].Trace = traced
			requests[1].Trace, requests[1].Lease = another, short
			answers := k.claimMany(requests, dedupstore.AcquiredRun)
			k.pass(short)
			linked := func(a dedupstore.Answer, trace string) {
				k.Helper()
				if a.Trace != trace {
					k.Errorf("a claim that was answered %s got trace %q, want %q", a.Status, a.Trace, trace)
				}
			}
			taken := k.claim(k.request("held"), dedupstore.Busy)
			k.waits(taken)
			linked(taken, traced)
			crashed := k.claim(k.request("crashed"), dedupstore.AcquiredRun)
			k.found(crashed, dedupstore.Running)
			k.attempt(crashed, 2)
			linked(crashed, another)
			k.settle(answers[0].Claim, finish(succeeded("paid")))
			linked(k.claim(k.request("held"), dedupstore.Done), traced)
		},
	},
	{
		name: "batch/settlings-are-kept-as-asked",
		why: "an outcome or a release that a batch stored for a moment only lets the message run again, or without " +
			"end",
		test: func(k *kit) {
			requests := k.requests("finished", "published", "publishing", "publisher crashed", "released",
				"interrupted")
			requests[3].Lease = short
			answers := k.claimMany(requests, dedupstore.AcquiredRun)
			k.settleMany([]dedupstore.Settling{
				{Claim: answers[0].Claim, Settlement: finish(succeeded("paid"))},
				{Claim: answers[1].Claim, Settlement: finishTo(succeeded("sent"), receipt)},
				{Claim: answers[1].Claim, Settlement: published()},
				{Claim: answers[2].Claim, Settlement: finishTo(succeeded("ordered"), receipt)},
				{Claim: answers[3].Claim, Settlement: finishTo(succeeded("crashed"), receipt)},
				{Claim: answers[4].Claim, Settlement: dedupstore.Release{}},
				{Claim: answers[5].Claim, Settlement: dedupstore.Release{Delay: short, Uncounted: true}},
			})
			k.pass(short)
			k.sameOutcome(k.claim(k.request("finished"), dedupstore.Done).Outcome, succeeded("paid"))
			k.keptOutcome(k.claim(k.request("published"), dedupstore.Done).Outcome,
				finishTo(succeeded("sent"), receipt).Outcome)
			publishing := k.claim(k.request("publishing"), dedupstore.Busy)
			k.found(publishing, dedupstore.Publishing)
			k.waits(publishing)
			takenOver := k.claim(k.request("publisher crashed"), dedupstore.AcquiredPublish)
			k.sameOutcome(takenOver.Outcome, finishTo(succeeded("crashed"), receipt).Outcome)
			for id, attempt := range map[string]int{"released": 2, "interrupted": 1} {
				a := k.claim(k.request(id), dedupstore.AcquiredRun)
				k.found(a, dedupstore.Retryable)
				k.attempt(a, attempt)
				if returned := 2 - attempt; a.Claim.Returned != returned {
					k.Errorf("%s: Returned is %d, want %d", id, a.Claim.Returned, returned)
				}
			}
		},
	},
}
