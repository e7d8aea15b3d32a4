package storetest

import "github.com/oncemill/oncemill/dedupstore"

var publishCases = []testCase{
	{
		name: "publish/takeover-gets-the-same-messages",
		why: "whoever publishes after a crash has to send the same IDs and bytes, else consumers take them for " +
			"other messages",
		test: func(k *kit) {
			o := succeeded("paid")
			o.Produced = []dedupstore.Produced{
				receipt,
				{ID: "b", Topic: "", Payload: nil},
				{ID: "a", Topic: "orders.done", Key: "k", Header: map[string]string{"": "", "a": "1", "A": "2"},
					Payload: []byte(`{"x":[],"y":{}}`)},
			}
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			k.pass(short)
			fence := c.Fence
			for range 2 {
				a := k.expired(k.brief("1"), dedupstore.AcquiredPublish)
				k.found(a, dedupstore.Publishing)
				k.attempt(a, 1)
				k.sameOutcome(a.Outcome, o)
				k.grew(fence, a.Claim.Fence, "takeover of the publish step")
				if a.Fence != c.Fence {
					k.Errorf("the outcome was decided under fence %d, want that of its run, %d", a.Fence, c.Fence)
				}
				fence = a.Claim.Fence
			}
		},
	},
	{
		name: "publish/withheld-is-made-again",
		why: "a dead letter that is too large for the record must not be taken for published: whoever gets the " +
			"step makes it again",
		test: func(k *kit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			f := dedupstore.Finish{Outcome: failed("card refused"), Retention: long, Withheld: true}
			k.settle(c, f)
			k.settle(c, f) // repeated
			k.extend(c, long)
			k.found(k.claim(k.request("1"), dedupstore.Busy), dedupstore.Publishing)
			k.extend(c, short)
			k.pass(short)
			a := k.claim(k.request("1"), dedupstore.AcquiredPublish)
			k.sameOutcome(a.Outcome, failed("card refused"))
			if a.Fence != c.Fence {
				k.Errorf("the outcome was decided under fence %d, want that of its run, %d", a.Fence, c.Fence)
			}
			k.settle(a.Claim, dedupstore.Published{Retention: long, Produced: []dedupstore.Produced{receipt}})
			o := failed("card refused")
			o.Produced = []dedupstore.Produced{receipt}
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
		},
	},
	{
		name: "publish/live-lease-is-busy",
		why:  "copies that publish side by side overtake each other",
		test: func(k *kit) {
			c := k.run("1")
			k.settle(c, finishTo(succeeded("paid"), receipt))
			for range 2 {
				a := k.claim(k.request("1"), dedupstore.Busy)
				k.found(a, dedupstore.Publishing)
				k.waits(a)
			}
			k.settle(c, published())
		},
	},
	{
		name: "publish/lease-begins-with-the-finish",
		why:  "a publish step without a lease of its own, or with the rest of the run's, is published by two",
		test: func(k *kit) {
			c := k.run("1")
			k.extend(c, short)
			k.pass(short)
			k.settle(c, finishTo(succeeded("paid"), receipt))
			a := k.claim(k.request("1"), dedupstore.Busy)
			k.found(a, dedupstore.Publishing)
			k.waits(a)
		},
	},
	{
		name: "publish/takeover-has-a-lease",
		why:  "who takes the publish step over holds it as long as it asked for",
		test: func(k *kit) {
			k.settle(k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim, finishTo(succeeded("paid"), receipt))
			k.pass(short)
			k.claim(k.request("1"), dedupstore.AcquiredPublish)
			k.waits(k.claim(k.request("1"), dedupstore.Busy))
		},
	},
	{
		name: "publish/resent-claim-gets-the-step-again",
		why: "the holder of the publish step that asks again, because a reply was lost, gets its messages and its " +
			"fence again",
		test: func(k *kit) {
			r := k.brief("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			f := finishTo(succeeded("paid"), receipt)
			k.settle(c, f)
			for range 2 {
				a := k.claim(r, dedupstore.AcquiredPublish)
				k.sameOutcome(a.Outcome, f.Outcome)
				if a.Claim != c {
					k.Errorf("the claim is %+v, want %+v", a.Claim, c)
				}
				k.pass(short) // also after the lease
			}
			k.settle(c, published())
		},
	},
	{
		name: "publish/does-not-run-again",
		why:  "an outcome is decided once: neither spent attempts nor parking nor an ended lease may change it",
		test: func(k *kit) {
			o := succeeded("paid")
			o.Produced = []dedupstore.Produced{receipt}
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.extend(c, short)
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			k.pass(short)
			r := k.request("1")
			r.MaxAttempts, r.ParkExpired = 1, true
			a := k.claim(r, dedupstore.AcquiredPublish)
			k.sameOutcome(a.Outcome, o)
			k.attempt(a, 1)
		},
	},
	{
		name: "publish/done-keeps-IDs",
		why:  "IDs of what was published are needed to find it again; its bytes only fill the store",
		test: func(k *kit) {
			o := failed("card refused")
			o.Result = []byte("no")
			o.Produced = []dedupstore.Produced{receipt, {ID: "dead-letter", Topic: "dead", Payload: []byte("order 7")}}
			c := k.run("1")
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			k.settle(c, published())
			a := k.claim(k.request("1"), dedupstore.Done)
			k.keptOutcome(a.Outcome, o)
			if a.Fence != c.Fence {
				k.Errorf("Done names fence %d, want that of the run, %d", a.Fence, c.Fence)
			}
		},
	},
	{
		name: "publish/what-the-run-produced-stays",
		why: "what a publisher says it published must not replace the messages of the outcome: duplicates would be " +
			"told of others",
		test: func(k *kit) {
			c := k.run("1")
			f := finishTo(succeeded("paid"), receipt)
			k.settle(c, f)
			k.settle(c, dedupstore.Published{Retention: long,
				Produced: []dedupstore.Produced{{ID: "letter", Topic: "dead"}}})
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, f.Outcome)
		},
	},
	{
		name: "publish/repeated-published-is-ok",
		why:  "the reply may be lost; a late copy must not begin the window anew",
		test: func(k *kit) {
			c := k.run("1")
			k.settle(c, finishTo(succeeded(""), receipt))
			for range 2 {
				k.settle(c, published())
			}
			k.claim(k.request("1"), dedupstore.Done)

			c = k.run("2")
			k.settle(c, finishTo(succeeded(""), receipt))
			p := dedupstore.Published{Retention: twice}
			k.settle(c, p)
			k.pass(short)
			if err := dedupstore.SettleOne(k.Context(), k.Store, c, p); err != nil {
				return // the machine is slow: the window is over
			}
			k.pass(short)
			k.found(k.claim(k.request("2"), dedupstore.AcquiredRun), dedupstore.Absent)
		},
	},
	{
		name: "publish/owner-is-compared",
		why:  "who does not hold the publish step does not know whether the messages were published",
		test: func(k *kit) {
			first := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			k.settle(first, finishTo(succeeded(""), receipt))
			k.pass(short)
			second := k.claim(k.request("1"), dedupstore.AcquiredPublish).Claim
			forgedOwner, forgedFence := second, second
			forgedOwner.Owner, forgedFence.Fence = newOwner(), second.Fence-1
			for who, c := range map[string]dedupstore.Claim{
				"the owner before": first, "another owner": forgedOwner, "another fence": forgedFence,
			} {
				k.refused(c, published(), who)
				k.lost(k.tryExtend(c, short), "extend of the publish step by %s", who)
			}
			k.found(k.claim(k.request("1"), dedupstore.Busy), dedupstore.Publishing)
			k.settle(second, published())
			k.refused(first, published(), "the owner before, when done")
		},
	},
	{
		name: "publish/not-before-the-finish",
		why:  "a record that becomes DONE without an outcome loses the message",
		test: func(k *kit) {
			c := k.run("1")
			if err := dedupstore.SettleOne(k.Context(), k.Store, c, published()); err == nil {
				k.Error("Published of a run that has no outcome was accepted")
			}
			k.found(k.claim(k.request("1"), dedupstore.Busy), dedupstore.Running)
			k.settle(c, finish(succeeded("paid")))
		},
	},
	{
		name: "publish/bytes-are-opaque",
		why:  "messages are sent again with the bytes that they had, be they text or not",
		test: func(k *kit) {
			all := make([]byte, 256)
			for i := range all {
				all[i] = byte(i)
			}
			odd := []string{string(all), "\xff\xfe", "é", "<&>\u2028", "\x00", `"\`, "null", " "}
			r, o := k.request("1"), succeeded(string(all))
			for i, s := range odd {
				o.Produced = append(o.Produced, dedupstore.Produced{
					ID: "id " + string(rune('a'+i)), Topic: s, Key: s, Header: map[string]string{s: s, "plain": "text"},
					Payload: []byte(s),
				})
			}
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			k.sameOutcome(k.claim(r, dedupstore.AcquiredPublish).Outcome, o)
			k.settle(c, published())
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
		},
	},
}
