package storetest

import "github.com/oncemill/oncemill/dedupstore"

var finishCases = []testCase{
	{
		name: "finish/duplicates-get-the-outcome",
		why:  "a duplicate is answered with what the first copy came to, failures included",
		test: func(k *kit) {
			for id, o := range map[string]dedupstore.Outcome{
				"succeeded": {Kind: dedupstore.Succeeded, Result: []byte("paid")},
				"cut":       {Kind: dedupstore.Succeeded, Result: []byte("pa"), Truncated: true},
				"empty":     {Kind: dedupstore.Succeeded},
				"failed":    {Kind: dedupstore.Failed, Reason: "card refused", Result: []byte("no")},
				"exhausted": {Kind: dedupstore.Failed, Exhausted: true, Reason: "three errors"},
				"unknown":   {Kind: dedupstore.Unknown, Reason: "timeout"},
			} {
				c := k.run(id)
				k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
				for range 2 {
					a := k.claim(k.request(id), dedupstore.Done)
					k.found(a, dedupstore.Finished)
					k.sameOutcome(a.Outcome, o)
					if a.Fence != c.Fence {
						k.Errorf("%s: Done names fence %d, want that of the run, %d", id, a.Fence, c.Fence)
					}
				}
			}
		},
	},
	{
		name: "finish/spent-attempts-do-not-undo-it",
		why:  "an outcome is looked at before attempts: a success of the last attempt is a success",
		test: func(k *kit) {
			r := k.request("1")
			r.MaxAttempts = 1
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, finish(succeeded("paid")))
			r.Owner = newOwner()
			k.sameOutcome(k.claim(r, dedupstore.Done).Outcome, succeeded("paid"))
		},
	},
	{
		name: "finish/repeated-is-ok",
		why:  "a finish whose reply was lost is sent again, and its sender acknowledges only when it is told ok",
		test: func(k *kit) {
			c := k.run("done")
			for range 2 {
				k.settle(c, finish(succeeded("paid")))
			}
			k.sameOutcome(k.claim(k.request("done"), dedupstore.Done).Outcome, succeeded("paid"))

			c = k.run("publishing")
			for range 2 {
				k.settle(c, finishTo(succeeded("paid"), receipt))
			}
			k.settle(c, published())
			k.settle(c, finishTo(succeeded("paid"), receipt)) // a late copy does not make it PUBLISHING again
			k.claim(k.request("publishing"), dedupstore.Done)
		},
	},
	{
		name: "finish/repeated-changes-nothing",
		why:  "late copies of a finish must not make a record stay longer than its window",
		test: func(k *kit) {
			f := finish(succeeded(""))
			f.Retention = twice
			c := k.run("1")
			k.settle(c, f)
			k.pass(short)
			if err := dedupstore.SettleOne(k.Context(), k.Store, c, f); err != nil {
				return // the machine is slow: the window is over
			}
			k.pass(short)
			k.found(k.claim(k.request("1"), dedupstore.AcquiredRun), dedupstore.Absent)
		},
	},
	{
		name: "finish/decides-once",
		why: "a success that its owner could still make a failure would be run again on request, and dead-lettered " +
			"beside its effect",
		test: func(k *kit) {
			done, publishing := k.run("done"), k.run("publishing")
			k.settle(done, finish(succeeded("paid")))
			f := finishTo(succeeded("paid"), receipt)
			k.settle(publishing, f)
			for _, c := range []dedupstore.Claim{done, publishing} {
				// It may be refused or ignored.
				_ = dedupstore.SettleOne(k.Context(), k.Store, c, finish(failed("card refused")))
			}
			k.settle(publishing, published())
			k.sameOutcome(k.claim(k.request("done"), dedupstore.Done).Outcome, succeeded("paid"))
			k.keptOutcome(k.claim(k.request("publishing"), dedupstore.Done).Outcome, f.Outcome)
		},
	},
	{
		name: "finish/owner-is-compared",
		why:  "who does not hold the claim must not decide its outcome",
		test: func(k *kit) {
			c := k.run("1")
			forged := c
			forged.Owner = newOwner()
			k.refused(forged, finish(failed("forged")), "another owner")
			k.refused(forged, finishTo(failed("forged"), receipt), "another owner")
			k.claim(k.request("1"), dedupstore.Busy)
			k.settle(c, finish(succeeded("paid")))
			k.refused(forged, finish(failed("forged")), "another owner, when done")
			k.sameOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, succeeded("paid"))
		},
	},
	{
		name: "finish/fence-is-compared",
		why:  "one token can own a record twice, by a late copy of its claim: the run of the earlier fence is a zombie",
		test: func(k *kit) {
			c := k.run("1")
			for _, fence := range []uint64{c.Fence - 1, c.Fence + 1} {
				forged := c
				forged.Fence = fence
				k.refused(forged, finish(failed("forged")), "another fence")
			}
			k.settle(c, finish(succeeded("paid")))
		},
	},
	{
		name: "finish/taken-over-run-is-refused",
		why:  "a zombie that comes back must not overwrite what its successor does",
		test: func(k *kit) {
			zombie := k.crashed("1")
			c := k.run("1")
			k.refused(zombie, finish(failed("zombie")), "a zombie")
			k.settle(c, finish(succeeded("paid")))
			k.refused(zombie, finish(failed("zombie")), "a zombie, when done")
			k.sameOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, succeeded("paid"))
		},
	},
	{
		name: "finish/zombie-whose-token-came-back",
		why: "a late copy of its claim can make a zombie's token the owner of a failure: its finish is not a " +
			"repeated one, and told ok the dead letter would never be sent",
		test: func(k *kit) {
			r := k.brief("1")
			r.MaxAttempts = 2
			zombie := k.expired(r, dedupstore.AcquiredRun).Claim
			last := k.brief("1")
			last.MaxAttempts = 2
			k.expired(last, dedupstore.AcquiredRun)
			late := k.claim(r, dedupstore.AcquiredPublish) // attempts are spent
			k.refused(zombie, finish(succeeded("zombie")), "a zombie whose token came back")
			again := k.claim(r, dedupstore.AcquiredPublish)
			if !again.Outcome.Exhausted || again.Claim != late.Claim {
				k.Errorf("the record is owned by %+v with outcome %+v, want %+v and an exhausted failure", again.Claim,
					again.Outcome, late.Claim)
			}
			k.settle(late.Claim, published())
		},
	},
	{
		name: "finish/outcome-is-not-the-publisher's",
		why: "who only acquired an outcome to publish has not stored one: told ok, it would take what it brought " +
			"for recorded",
		test: func(k *kit) {
			r := k.request("exhausted")
			r.MaxAttempts = 1
			k.settle(k.run("exhausted"), dedupstore.Release{})
			exhausted := k.claim(r, dedupstore.AcquiredPublish).Claim

			k.extend(k.run("parked"), short)
			k.settle(k.claim(k.brief("taken over"), dedupstore.AcquiredRun).Claim,
				finishTo(failed("card refused"), receipt))
			k.pass(short)
			r = k.request("parked")
			r.ParkExpired = true
			parked := k.claim(r, dedupstore.AcquiredPublish).Claim
			takenOver := k.claim(k.request("taken over"), dedupstore.AcquiredPublish).Claim

			for _, c := range []dedupstore.Claim{exhausted, parked, takenOver} {
				k.refused(c, finish(succeeded("paid")), "the publisher of "+c.Key.ID)
				k.refused(c, finishTo(succeeded("paid"), receipt), "the publisher of "+c.Key.ID)
				k.found(k.claim(k.request(c.Key.ID), dedupstore.Busy), dedupstore.Publishing)
				k.settle(c, published())
				k.refused(c, finish(succeeded("paid")), "the publisher of "+c.Key.ID+", when done")
				if a := k.claim(k.request(c.Key.ID), dedupstore.Done); a.Outcome.Kind == dedupstore.Succeeded {
					k.Errorf("%s: the outcome became %+v", c.Key.ID, a.Outcome)
				}
			}
		},
	},
	{
		name: "finish/not-after-release",
		why:  "a run that was given back may be another's at any moment",
		test: func(k *kit) {
			c := k.run("1")
			k.settle(c, dedupstore.Release{})
			k.refused(c, finish(succeeded("")), "an owner that released")
			k.claim(k.request("1"), dedupstore.AcquiredRun)
		},
	},
	{
		name: "finish/no-record-is-lost",
		why:  "a settle of a record that is gone must not start one: another owner may have finished it long ago",
		test: func(k *kit) {
			never := dedupstore.Claim{Key: k.key("never"), Owner: newOwner(), Fence: 1, Attempt: 1, Lease: long,
				Retention: long}
			r := k.brief("gone")
			r.Retention = short
			gone := k.claim(r, dedupstore.AcquiredRun).Claim
			k.pass(2 * short)
			for _, c := range []dedupstore.Claim{never, gone} {
				k.refused(c, finish(succeeded("")), "nobody")
				k.refused(c, finishTo(succeeded(""), receipt), "nobody")
				k.refused(c, dedupstore.Release{}, "nobody")
				k.refused(c, published(), "nobody")
				k.lost(k.tryExtend(c, long), "extend by nobody")
				k.found(k.claim(k.request(c.Key.ID), dedupstore.AcquiredRun), dedupstore.Absent)
			}
		},
	},
	{
		name: "finish/with-everything-published",
		why:  "a run that published before it finished leaves nothing to do, and the IDs to know it by",
		test: func(k *kit) {
			o := succeeded("paid")
			o.Produced = []dedupstore.Produced{receipt}
			k.settle(k.run("1"), finish(o))
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
		},
	},
	{
		name: "finish/outcome-is-copied",
		why:  "buffers are used again: neither who stored an outcome nor who read it may change it afterwards",
		test: func(k *kit) {
			fresh := func() dedupstore.Outcome {
				o, p := succeeded("paid"), receipt
				p.Header, p.Payload = map[string]string{"currency": "EUR"}, []byte("12.50")
				o.Produced = []dedupstore.Produced{p}
				return o
			}
			scribble := func(o dedupstore.Outcome) {
				copy(o.Result, "XXXX")
				for i := range o.Produced {
					copy(o.Produced[i].Payload, "XXXX")
					clear(o.Produced[i].Header)
					o.Produced[i].ID = "X"
				}
			}
			r, o := k.request("1"), fresh()
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			scribble(o)
			for range 2 {
				a := k.claim(r, dedupstore.AcquiredPublish)
				k.sameOutcome(a.Outcome, fresh())
				scribble(a.Outcome)
			}
			k.settle(c, published())
			for range 2 {
				a := k.claim(k.request("1"), dedupstore.Done)
				k.keptOutcome(a.Outcome, fresh())
				scribble(a.Outcome)
			}
		},
	},
}
