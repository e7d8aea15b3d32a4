package storetest

import (
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var claimCases = []testCase{
	{
		name: "claim/first-claim-runs",
		why:  "a message that was never seen has to be processed, once, with a claim that says what was asked for",
		test: func(k *kit) {
			r := k.request("1")
			a := k.claim(r, dedupstore.AcquiredRun)
			k.found(a, dedupstore.Absent)
			want := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: a.Claim.Fence, Attempt: 1, Lease: r.Lease,
				Retention: r.Retention}
			if a.Claim != want || a.Claim.Fence == 0 {
				k.Errorf("the claim is %+v, want %+v with a fence", a.Claim, want)
			}
			if a.Age != 0 || a.Trace != "" {
				k.Errorf("a fresh record has age %v and trace %q, want none", a.Age, a.Trace)
			}
		},
	},
	{
		name: "claim/live-lease-is-busy",
		why:  "two holders of one key make the effect twice",
		test: func(k *kit) {
			c := k.run("1")
			for range 2 {
				a := k.claim(k.request("1"), dedupstore.Busy)
				k.found(a, dedupstore.Running)
				k.waits(a)
				if a.Fence != c.Fence {
					k.Errorf("Busy names fence %d, want the holder's, %d", a.Fence, c.Fence)
				}
			}
			k.settle(c, finish(succeeded("")))
		},
	},
	{
		name: "claim/resent-claim-gets-the-same-answer",
		why: "a claim whose reply was lost is sent again: Busy would make the holder wait for itself, and a second " +
			"attempt would be spent for nothing",
		test: func(k *kit) {
			r := k.request("1")
			first := k.claim(r, dedupstore.AcquiredRun)
			for range 2 {
				again := k.claim(r, dedupstore.AcquiredRun)
				k.found(again, dedupstore.Running)
				if again.Claim != first.Claim {
					k.Errorf("asked again, the owner got the claim %+v, want the same as before, %+v", again.Claim,
						first.Claim)
				}
			}
		},
	},
	{
		name: "claim/resent-claim-comes-before-attempts-and-parking",
		why:  "a re-sent claim that arrives when the lease has run out must not end the live run of its own sender",
		test: func(k *kit) {
			r := k.brief("1")
			r.MaxAttempts, r.ParkExpired = 1, true
			first := k.claim(r, dedupstore.AcquiredRun)
			k.extend(first.Claim, short)
			k.pass(short)
			again := k.claim(r, dedupstore.AcquiredRun)
			if again.Claim != first.Claim {
				k.Errorf("asked again after its lease, the owner got the claim %+v, want the same as before, %+v",
					again.Claim, first.Claim)
			}
			k.settle(first.Claim, finish(succeeded("")))
		},
	},
	{
		name: "claim/resent-claim-changes-nothing",
		why: "a late copy of a claim must neither renew the lease of a holder that is gone nor forget its outcome " +
			"sooner",
		test: func(k *kit) {
			r := k.brief("run")
			k.expired(r, dedupstore.AcquiredRun)
			k.claim(r, dedupstore.AcquiredRun)
			k.claim(k.request("run"), dedupstore.AcquiredRun)

			k.within(200*time.Millisecond, func(k *kit, limit time.Duration) {
				r := k.request("publish")
				r.Lease, r.Retention = limit/2, limit/2
				c := k.claim(r, dedupstore.AcquiredRun).Claim
				k.settle(c, finishTo(succeeded(""), receipt)) // remembered for a long time
				k.claim(r, dedupstore.AcquiredPublish)
				k.pass(limit)
				k.claim(k.request("publish"), dedupstore.AcquiredPublish)
			})
		},
	},
	{
		name: "claim/no-outcome-before-the-end",
		why:  "a key that is marked as handled before its handler ran loses the message when the handler dies",
		test: func(k *kit) {
			k.crashed("1")
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.found(a, dedupstore.Running)
			k.settle(a.Claim, dedupstore.Release{})
			k.found(k.claim(k.request("1"), dedupstore.AcquiredRun), dedupstore.Retryable)
		},
	},
	{
		name: "claim/late-copy-after-release",
		why:  "a late copy of a claim that was released would take an attempt and a lease that nobody uses",
		test: func(k *kit) {
			r := k.request("1")
			r.MaxAttempts = 1
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.settle(c, dedupstore.Release{})
			late := k.claim(r, dedupstore.Busy)
			k.found(late, dedupstore.Retryable)
			if late.Wait < 0 {
				k.Errorf("Wait is %v, want at least 0", late.Wait)
			}
			next := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.attempt(next, 2)
		},
	},
	{
		name: "claim/late-copy-under-another-owner",
		why:  "a late copy of a settled claim must not take over a run of another owner whose lease ended",
		test: func(k *kit) {
			r := k.request("1")
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{})
			next := k.crashed("1")
			late := k.claim(r, dedupstore.Busy)
			k.found(late, dedupstore.Running)
			if late.Wait != 0 {
				k.Errorf("Wait is %v although no lease is live, want 0", late.Wait)
			}
			k.settle(next, finish(succeeded("")))
		},
	},
	{
		name: "claim/late-copy-of-an-earlier-settler",
		why:  "copies can be late by more than one run, so that one remembered token is not enough",
		test: func(k *kit) {
			first, second := k.request("1"), k.request("1")
			k.settle(k.claim(first, dedupstore.AcquiredRun).Claim, dedupstore.Release{})
			k.settle(k.claim(second, dedupstore.AcquiredRun).Claim, dedupstore.Release{})
			k.claim(first, dedupstore.Busy)
			k.claim(second, dedupstore.Busy)
			k.attempt(k.claim(k.request("1"), dedupstore.AcquiredRun), 3)
		},
	},
	{
		name: "claim/late-copy-after-finish",
		why: "a late copy of a finished claim must not take the publish step from whoever has to publish, nor run " +
			"again",
		test: func(k *kit) {
			r := k.brief("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.settle(c, finishTo(succeeded("paid"), receipt))
			k.pass(short)
			publisher := k.expired(k.brief("1"), dedupstore.AcquiredPublish).Claim
			k.found(k.claim(r, dedupstore.Busy), dedupstore.Publishing)
			k.settle(publisher, published())
			k.found(k.claim(r, dedupstore.Done), dedupstore.Finished)
		},
	},
	{
		name: "claim/trace-is-of-the-last-run",
		why:  "a duplicate links to the trace of the run that it duplicates",
		test: func(k *kit) {
			const one, two = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
				"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
			claim := func(trace string, status dedupstore.Status, want string) dedupstore.Claim {
				k.Helper()
				r := k.request("1")
				r.Trace = trace
				a := k.claim(r, status)
				if a.Trace != want {
					k.Errorf("a claim that was answered %s got trace %q, want %q", status, a.Trace, want)
				}
				return a.Claim
			}
			c := claim(one, dedupstore.AcquiredRun, "")
			claim(two, dedupstore.Busy, one)
			k.settle(c, dedupstore.Release{})
			c = claim("", dedupstore.AcquiredRun, one)
			k.settle(c, dedupstore.Release{})
			c = claim(two, dedupstore.AcquiredRun, "")
			k.settle(c, finish(succeeded("")))
			claim(one, dedupstore.Done, two)
		},
	},
	{
		name: "claim/age-is-since-the-first-claim",
		why:  "operators see by the age how long a message has been under way, retries included",
		test: func(k *kit) {
			k.crashed("1")
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.settle(a.Claim, dedupstore.Release{})
			b := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.settle(b.Claim, finish(succeeded("")))
			for _, a := range []dedupstore.Answer{a, b, k.claim(k.request("1"), dedupstore.Done)} {
				if a.Age < short || a.Age > long {
					k.Errorf("a claim that was answered %s and found %s has age %v, want at least %v", a.Status,
						a.Found, a.Age, short)
				}
			}
		},
	},
	{
		name: "claim/fence-grows-with-every-owner",
		why:  "what the handler writes to is protected from zombies by refusing smaller fences",
		test: func(k *kit) {
			a := k.expired(k.brief("1"), dedupstore.AcquiredRun).Claim
			b := k.run("1")
			k.grew(a.Fence, b.Fence, "takeover")
			k.settle(b, dedupstore.Release{})
			c := k.run("1")
			k.grew(b.Fence, c.Fence, "release")
			k.settle(c, dedupstore.Release{Uncounted: true})
			r := k.brief("1")
			r.MaxAttempts = 9
			d := k.claim(r, dedupstore.AcquiredRun).Claim
			k.grew(c.Fence, d.Fence, "uncounted release")
			k.settle(d, finishTo(failed(""), receipt))
			k.pass(short)
			e := k.claim(k.request("1"), dedupstore.AcquiredPublish).Claim
			k.grew(d.Fence, e.Fence, "takeover of the publish step")
			k.settle(e, published())
			r = k.request("1")
			r.Rerun = d.Fence
			k.grew(e.Fence, k.claim(r, dedupstore.AcquiredRun).Claim.Fence, "rerun")
		},
	},
	{
		name: "claim/fence-grows-after-a-lost-record",
		why:  "a fence that starts anew lets zombies of the time before the loss through",
		test: func(k *kit) {
			r := k.brief("1")
			r.Retention = short
			before := k.claim(r, dedupstore.AcquiredRun).Claim
			k.pass(2 * short)
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.found(a, dedupstore.Absent)
			k.attempt(a, 1)
			k.grew(before.Fence, a.Claim.Fence, "lost record")
		},
	},
}
