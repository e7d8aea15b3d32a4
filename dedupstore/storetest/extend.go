package storetest

import "github.com/oncemill/oncemill/dedupstore"

var extendCases = []testCase{
	{
		name: "extend/renews-the-lease",
		why:  "a handler that takes longer than the lease keeps its key by heartbeats",
		test: func(k *kit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.extend(c, long)
			k.pass(short)
			a := k.claim(k.request("1"), dedupstore.Busy)
			k.found(a, dedupstore.Running)
			k.waits(a)
			k.settle(c, finish(succeeded("")))
		},
	},
	{
		name: "extend/may-shorten",
		why:  "who lets go early, as when a broker takes its message back, ends its lease sooner",
		test: func(k *kit) {
			c := k.run("1")
			k.extend(c, short)
			k.pass(short)
			k.attempt(k.claim(k.request("1"), dedupstore.AcquiredRun), 2)
		},
	},
	{
		name: "extend/works-after-expiry",
		why:  "a heartbeat that comes late, with nobody having taken over, saves the run",
		test: func(k *kit) {
			c := k.crashed("1")
			k.extend(c, long)
			k.waits(k.claim(k.request("1"), dedupstore.Busy))
			k.settle(c, finish(succeeded("")))
		},
	},
	{
		name: "extend/keeps-fence-and-attempt",
		why:  "a heartbeat is not a new claim",
		test: func(k *kit) {
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.extend(c, long)
			k.extend(c, long)
			if again := k.claim(r, dedupstore.AcquiredRun).Claim; again != c {
				k.Errorf("after a heartbeat the claim is %+v, want %+v", again, c)
			}
		},
	},
	{
		name: "extend/owner-is-compared",
		why:  "a heartbeat of another must not keep a dead holder's lease alive, nor end a live one's",
		test: func(k *kit) {
			c := k.run("1")
			forged := c
			forged.Owner = newOwner()
			k.lost(k.tryExtend(forged, short), "extend by another owner")
			forged = c
			forged.Fence++
			k.lost(k.tryExtend(forged, short), "extend by another fence")
			k.pass(short)
			k.claim(k.request("1"), dedupstore.Busy)
			k.extend(c, long)
		},
	},
	{
		name: "extend/taken-over-run-is-refused",
		why:  "a zombie learns by its heartbeat that its claim is lost, and must not touch its successor's lease",
		test: func(k *kit) {
			zombie := k.crashed("1")
			c := k.run("1")
			k.lost(k.tryExtend(zombie, short), "extend by a zombie")
			k.pass(short)
			k.claim(k.request("1"), dedupstore.Busy)
			k.extend(c, long)
		},
	},
	{
		name: "extend/renews-the-publish-step",
		why: "publishing may take longer than the lease, too; who takes over when its holder dies needs the outcome " +
			"and its messages",
		test: func(k *kit) {
			o := succeeded("paid")
			o.Produced = []dedupstore.Produced{receipt}
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			k.extend(c, long)
			k.pass(short)
			a := k.claim(k.request("1"), dedupstore.Busy)
			k.found(a, dedupstore.Publishing)
			k.waits(a)
			k.extend(c, short)
			k.pass(short)
			a = k.claim(k.request("1"), dedupstore.AcquiredPublish)
			k.sameOutcome(a.Outcome, o)
			if a.Fence != c.Fence {
				k.Errorf("after a heartbeat the outcome was decided under fence %d, want that of its run, %d", a.Fence,
					c.Fence)
			}
			k.extend(a.Claim, long)
			k.settle(a.Claim, published())
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
		},
	},
	{
		name: "extend/nothing-to-extend",
		why:  "a heartbeat of a settled run must end, and change nothing",
		test: func(k *kit) {
			c := k.run("released")
			k.settle(c, dedupstore.Release{})
			k.lost(k.tryExtend(c, long), "extend after a release")
			k.attempt(k.claim(k.request("released"), dedupstore.AcquiredRun), 2)

			c = k.run("done")
			k.settle(c, finish(succeeded("")))
			k.lost(k.tryExtend(c, long), "extend after a finish")
			k.claim(k.request("done"), dedupstore.Done)
		},
	},
}
