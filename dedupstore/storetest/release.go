package storetest

import "github.com/oncemill/oncemill/dedupstore"

var releaseCases = []testCase{
	{
		name: "release/runs-again",
		why:  "a run that failed retryably is tried again, as a further attempt",
		test: func(k *kit) {
			c := k.run("1")
			k.settle(c, dedupstore.Release{Reason: "database is down"})
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.found(a, dedupstore.Retryable)
			k.attempt(a, 2)
		},
	},
	{
		name: "release/not-due-is-busy",
		why:  "a retry that comes too early hammers what has just failed",
		test: func(k *kit) {
			c := k.run("1")
			k.settle(c, dedupstore.Release{Delay: long})
			a := k.claim(k.request("1"), dedupstore.Busy)
			k.found(a, dedupstore.Retryable)
			k.waits(a)
			if a.Fence != c.Fence {
				k.Errorf("Busy names fence %d, want that of the last owner, %d", a.Fence, c.Fence)
			}
		},
	},
	{
		name: "release/due-after-the-delay",
		why:  "a retry that never becomes due is a lost message",
		test: func(k *kit) {
			k.settle(k.run("1"), dedupstore.Release{Delay: short})
			k.pass(short)
			k.attempt(k.claim(k.request("1"), dedupstore.AcquiredRun), 2)
		},
	},
	{
		name: "release/attempts-are-remembered",
		why:  "a message that fails for ever would be tried for ever",
		test: func(k *kit) {
			for attempt := 1; attempt <= 3; attempt++ {
				a := k.claim(k.request("1"), dedupstore.AcquiredRun)
				k.attempt(a, attempt)
				k.settle(a.Claim, dedupstore.Release{})
			}
			a := k.claim(k.request("1"), dedupstore.AcquiredPublish)
			k.found(a, dedupstore.Retryable)
			if a.Outcome.Kind != dedupstore.Failed || !a.Outcome.Exhausted {
				k.Errorf("with 3 of 3 attempts spent the outcome is %+v, want failed and exhausted", a.Outcome)
			}
		},
	},
	{
		name: "release/uncounted-gives-the-attempt-back",
		why:  "a run that shutdown interrupted did not fail: deployments must not spend attempts",
		test: func(k *kit) {
			k.settle(k.run("1"), dedupstore.Release{})
			for returned := range 5 {
				a := k.claim(k.request("1"), dedupstore.AcquiredRun)
				k.attempt(a, 2)
				if a.Claim.Returned != returned {
					k.Errorf("Returned is %d after %d attempts that were given back: "+
						"without a bound a message is interrupted for ever", a.Claim.Returned, returned)
				}
				k.settle(a.Claim, dedupstore.Release{Uncounted: true})
			}
		},
	},
	{
		name: "release/returned-attempts-are-remembered",
		why:  "how often a message was interrupted is bounded: failures in between must not begin the count anew",
		test: func(k *kit) {
			k.settle(k.run("1"), dedupstore.Release{Uncounted: true})
			k.settle(k.run("1"), dedupstore.Release{})
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.attempt(a, 2)
			if a.Claim.Returned != 1 {
				k.Errorf("Returned is %d after one attempt that was given back and one that was not, want 1",
					a.Claim.Returned)
			}
		},
	},
	{
		name: "release/repeated-is-ok",
		why: "a release whose reply was lost is sent again, and must neither fail nor give back a second attempt " +
			"nor begin a second delay",
		test: func(k *kit) {
			k.settle(k.run("1"), dedupstore.Release{})
			c := k.run("1")
			for range 3 {
				k.settle(c, dedupstore.Release{Uncounted: true, Delay: short})
			}
			k.pass(short)
			k.settle(c, dedupstore.Release{Uncounted: true, Delay: short})
			k.attempt(k.claim(k.request("1"), dedupstore.AcquiredRun), 2)
		},
	},
	{
		name: "release/late-copy-does-not-end-the-next-run",
		why:  "a late copy of a release must not let a third owner in beside the second",
		test: func(k *kit) {
			first := k.run("1")
			k.settle(first, dedupstore.Release{})
			second := k.run("1")
			k.refused(first, dedupstore.Release{}, "the owner before")
			k.claim(k.request("1"), dedupstore.Busy)
			k.settle(second, finish(succeeded("")))
		},
	},
	{
		name: "release/owner-is-compared",
		why:  "who does not hold the claim must not let others in beside its holder",
		test: func(k *kit) {
			c := k.run("1")
			forged := c
			forged.Owner = newOwner()
			k.refused(forged, dedupstore.Release{}, "another owner")
			k.claim(k.request("1"), dedupstore.Busy)
			k.settle(c, finish(succeeded("")))
		},
	},
	{
		name: "release/zombie-whose-token-came-back",
		why:  "the run of an earlier fence is over, also when a late copy of its claim made its token the owner again",
		test: func(k *kit) {
			r := k.brief("1")
			zombie := k.expired(r, dedupstore.AcquiredRun).Claim
			k.crashed("1")
			r.Lease = long
			back := k.claim(r, dedupstore.AcquiredRun)
			k.attempt(back, 3)
			k.grew(zombie.Fence, back.Claim.Fence, "takeover by a late copy")
			k.refused(zombie, dedupstore.Release{}, "a zombie whose token came back")
			k.refused(zombie, finish(failed("zombie")), "a zombie whose token came back")
			k.lost(k.tryExtend(zombie, short), "extend by a zombie whose token came back")
			k.claim(k.request("1"), dedupstore.Busy)
			k.settle(back.Claim, finish(succeeded("")))
		},
	},
	{
		name: "release/does-not-reopen-an-outcome",
		why:  "a late release of a run that finished would run it again",
		test: func(k *kit) {
			c := k.run("done")
			k.settle(c, finish(succeeded("")))
			k.refused(c, dedupstore.Release{}, "an owner that finished")
			k.claim(k.request("done"), dedupstore.Done)

			c = k.run("publishing")
			k.settle(c, finishTo(succeeded(""), receipt))
			k.refused(c, dedupstore.Release{}, "an owner that finished")
			k.found(k.claim(k.request("publishing"), dedupstore.Busy), dedupstore.Publishing)
		},
	},
}
