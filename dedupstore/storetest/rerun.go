package storetest

import "github.com/oncemill/oncemill/dedupstore"

// failure leaves an outcome of one attempt, and returns the fence under which it was decided.
func (k *kit) failure(o dedupstore.Outcome) uint64 {
	k.Helper()
	c := k.run("1")
	k.settle(c, finish(o))
	return c.Fence
}

// rerun returns a claim that names the fence of a stored outcome.
func (k *kit) rerun(fence uint64) dedupstore.Request {
	r := k.request("1")
	r.MaxAttempts, r.Rerun = 1, fence
	return r
}

var rerunCases = []testCase{
	{
		name: "rerun/failure-runs-again-once",
		why:  "an operator asks for one more run of a failure: copies of that request must not make more of it",
		test: func(k *kit) {
			fence := k.failure(failed("card refused"))
			r := k.rerun(fence)
			a := k.claim(r, dedupstore.AcquiredRun)
			k.found(a, dedupstore.Finished)
			k.attempt(a, 1) // attempts start anew
			k.grew(fence, a.Claim.Fence, "rerun")
			if again := k.claim(r, dedupstore.AcquiredRun); again.Claim != a.Claim {
				k.Errorf("asked again, the rerun got %+v, want %+v", again.Claim, a.Claim)
			}
			k.found(k.claim(k.rerun(fence), dedupstore.Busy), dedupstore.Running)
			k.settle(a.Claim, finish(failed("refused again")))
			for _, late := range []dedupstore.Request{r, k.rerun(fence)} {
				done := k.claim(late, dedupstore.Done)
				k.sameOutcome(done.Outcome, failed("refused again"))
				if done.Fence != a.Claim.Fence {
					k.Errorf("Done names fence %d, want that of the rerun, %d", done.Fence, a.Claim.Fence)
				}
			}
			k.claim(k.rerun(a.Claim.Fence), dedupstore.AcquiredRun) // that failure may be asked for, too
		},
	},
	{
		name: "rerun/interruptions-start-anew",
		why:  "how often the failed message was interrupted says nothing about the run that somebody asks for",
		test: func(k *kit) {
			k.settle(k.run("1"), dedupstore.Release{Uncounted: true})
			if a := k.claim(k.rerun(k.failure(failed("card refused"))), dedupstore.AcquiredRun); a.Claim.Returned != 0 {
				k.Errorf("Returned is %d, want 0", a.Claim.Returned)
			}
		},
	},
	{
		name: "rerun/unknown-runs-again",
		why:  "a parked outcome is run again when somebody has looked and found that nothing happened",
		test: func(k *kit) {
			fence := k.failure(dedupstore.Outcome{Kind: dedupstore.Unknown})
			k.claim(k.rerun(fence), dedupstore.AcquiredRun)
		},
	},
	{
		name: "rerun/success-never-runs-again",
		why:  "a rerun that was asked for a failure may arrive when the message has succeeded",
		test: func(k *kit) {
			fence := k.failure(succeeded("paid"))
			k.sameOutcome(k.claim(k.rerun(fence), dedupstore.Done).Outcome, succeeded("paid"))
		},
	},
	{
		name: "rerun/names-the-fence",
		why:  "a rerun of an older failure must not run the newer one again",
		test: func(k *kit) {
			fence := k.failure(failed("card refused"))
			k.claim(k.rerun(fence-1), dedupstore.Done)
			k.claim(k.rerun(fence+1), dedupstore.Done)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "rerun/fence-is-the-decision's",
		why:  "the fence in a dead letter stays valid when another takes over its publishing",
		test: func(k *kit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.settle(c, finishTo(failed("card refused"), receipt))
			k.pass(short)
			publisher := k.claim(k.request("1"), dedupstore.AcquiredPublish).Claim
			k.settle(publisher, published())
			done := k.claim(k.rerun(publisher.Fence), dedupstore.Done)
			if done.Fence != c.Fence {
				k.Errorf("Done names fence %d, want that of the run, %d", done.Fence, c.Fence)
			}
			k.claim(k.rerun(c.Fence), dedupstore.AcquiredRun)
		},
	},
	{
		name: "rerun/not-before-done",
		why:  "an outcome whose messages are still to be published is not superseded",
		test: func(k *kit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.settle(c, finishTo(failed("card refused"), receipt))
			k.pass(short)
			k.claim(k.rerun(c.Fence), dedupstore.AcquiredPublish)
		},
	},
	{
		name: "rerun/leaves-nothing-of-the-old-outcome",
		why: "a success that shows the reason, the result or the messages of the failure before it tells duplicates " +
			"of what never was",
		test: func(k *kit) {
			old := dedupstore.Outcome{
				Kind: dedupstore.Failed, Exhausted: true, Reason: "card refused", Result: []byte("no"), Truncated: true,
				Produced: []dedupstore.Produced{receipt},
			}
			a := k.claim(k.rerun(k.failure(old)), dedupstore.AcquiredRun)
			k.settle(a.Claim, finish(dedupstore.Outcome{Kind: dedupstore.Succeeded}))
			k.sameOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome,
				dedupstore.Outcome{Kind: dedupstore.Succeeded})

			c := k.run("released")
			k.settle(c, dedupstore.Release{Reason: "database is down"})
			k.settle(k.run("released"), finish(dedupstore.Outcome{Kind: dedupstore.Succeeded}))
			k.sameOutcome(k.claim(k.request("released"), dedupstore.Done).Outcome,
				dedupstore.Outcome{Kind: dedupstore.Succeeded})
		},
	},
	{
		name: "rerun/crash-is-taken-over",
		why:  "the run of a rerun is like any other: its crash is retried, and the old outcome is gone",
		test: func(k *kit) {
			r := k.rerun(k.failure(failed("card refused")))
			r.Lease = short
			k.expired(r, dedupstore.AcquiredRun)
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.found(a, dedupstore.Running)
			k.attempt(a, 2)
			k.settle(a.Claim, finish(succeeded("paid")))
			k.sameOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, succeeded("paid"))
		},
	},
	{
		name: "rerun/of-nothing-is-a-first-run",
		why:  "when the failure has been forgotten, a rerun is a message like any other",
		test: func(k *kit) {
			a := k.claim(k.rerun(7), dedupstore.AcquiredRun)
			k.found(a, dedupstore.Absent)
			k.attempt(a, 1)
		},
	},
	{
		name: "rerun/other-content-is-a-mismatch",
		why:  "a rerun is of the message that failed",
		test: func(k *kit) {
			r := k.request("1")
			r.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "one"}
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.settle(c, finish(failed("card refused")))
			r = k.rerun(c.Fence)
			r.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "two"}
			k.claim(r, dedupstore.Mismatch)
			r.Fingerprint.Sum = "one"
			k.claim(r, dedupstore.AcquiredRun)
		},
	},
	{
		name: "rerun/content-is-remembered",
		why:  "who asks for a rerun may not have the message: other content is as foreign after it as before",
		test: func(k *kit) {
			c := k.claim(k.of("1", one), dedupstore.AcquiredRun).Claim
			k.settle(c, finish(failed("card refused")))
			k.settle(k.claim(k.rerun(c.Fence), dedupstore.AcquiredRun).Claim, finish(succeeded("paid")))
			k.claim(k.of("1", two), dedupstore.Mismatch)
			k.claim(k.of("1", one), dedupstore.Done)
		},
	},
}
