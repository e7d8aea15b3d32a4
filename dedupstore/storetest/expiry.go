package storetest

import (
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var expiryCases = []testCase{
	{
		name: "expiry/takeover-runs-again",
		why:  "a message whose holder died has to be processed by another, as a further attempt",
		test: func(k *kit) {
			dead := k.crashed("1")
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			k.found(a, dedupstore.Running)
			k.attempt(a, 2)
			k.grew(dead.Fence, a.Claim.Fence, "takeover")
		},
	},
	{
		name: "expiry/lease-does-not-erase-the-record",
		why: "when fence, attempts and fingerprint go with the lease, a message that kills its handlers is tried " +
			"for ever",
		test: func(k *kit) {
			fingerprint := dedupstore.Fingerprint{Scheme: "sha256", Sum: "one"}
			var fence uint64
			for attempt := 1; attempt <= 3; attempt++ {
				r := k.brief("1")
				r.Fingerprint = fingerprint
				a := k.expired(r, dedupstore.AcquiredRun)
				k.attempt(a, attempt)
				k.grew(fence, a.Claim.Fence, "takeover")
				fence = a.Claim.Fence
			}
			r := k.request("1")
			r.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "two"}
			k.claim(r, dedupstore.Mismatch)
		},
	},
	{
		name: "expiry/does-not-revoke",
		why:  "a holder that was slow, but was not replaced, has done its work: to refuse it would do the work twice",
		test: func(k *kit) {
			k.settle(k.crashed("finish"), finish(succeeded("paid")))
			k.sameOutcome(k.claim(k.request("finish"), dedupstore.Done).Outcome, succeeded("paid"))

			k.settle(k.crashed("release"), dedupstore.Release{})
			k.attempt(k.claim(k.request("release"), dedupstore.AcquiredRun), 2)

			c := k.claim(k.brief("published"), dedupstore.AcquiredRun).Claim
			k.settle(c, finishTo(succeeded(""), receipt))
			k.pass(short)
			k.settle(c, published())
			k.claim(k.request("published"), dedupstore.Done)
		},
	},
	{
		name: "expiry/window-is-counted-from-the-end",
		why:  "a window that is counted from the claim is over too soon after a long run, and its duplicates run again",
		test: func(k *kit) {
			k.within(200*time.Millisecond, func(k *kit, window time.Duration) {
				c := k.run("1")
				k.pass(window)
				k.settle(c, dedupstore.Finish{Outcome: succeeded(""), Retention: window})
				k.claim(k.request("1"), dedupstore.Done)
			})
			k.within(200*time.Millisecond, func(k *kit, window time.Duration) {
				c := k.run("1")
				k.settle(c, dedupstore.Finish{Outcome: finishTo(succeeded(""), receipt).Outcome, Retention: window})
				k.pass(window)
				k.settle(c, dedupstore.Published{Retention: window})
				k.claim(k.request("1"), dedupstore.Done)
			})
		},
	},
	{
		name: "expiry/window-is-the-settlement's",
		why:  "how long an outcome is remembered is decided when it is known: failures may have a window of their own",
		test: func(k *kit) {
			r := k.request("1")
			r.Retention = time.Millisecond
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, finish(succeeded("")))
			k.pass(short)
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "expiry/forgotten-after-the-window",
		why:  "a record that is never forgotten fills the store",
		test: func(k *kit) {
			brief := k.brief("running")
			brief.Retention = short
			k.claim(brief, dedupstore.AcquiredRun)

			r := k.request("retryable")
			r.Retention = short
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{Delay: short})

			f := finishTo(succeeded(""), receipt)
			f.Retention = short
			k.settle(k.claim(k.brief("publishing"), dedupstore.AcquiredRun).Claim, f)

			f = finish(succeeded(""))
			f.Retention = short
			k.settle(k.run("done"), f)

			c := k.run("published")
			k.settle(c, finishTo(succeeded(""), receipt))
			k.settle(c, dedupstore.Published{Retention: short})

			k.settle(k.run("exhausted"), dedupstore.Release{})
			brief = k.brief("exhausted")
			brief.Retention, brief.MaxAttempts = short, 1
			k.claim(brief, dedupstore.AcquiredPublish)

			k.pass(2 * short)
			for _, id := range []string{"running", "retryable", "publishing", "done", "published", "exhausted"} {
				if a := k.ask(k.request(id)); a.Status != dedupstore.AcquiredRun || a.Found != dedupstore.Absent ||
					a.Claim.Attempt != 1 {
					k.Errorf("%s: after its window a claim was answered %s (found %s, attempt %d), want a first run",
						id, a.Status, a.Found, a.Claim.Attempt)
				}
			}
		},
	},
	{
		name: "expiry/retention-follows-lease-and-delay",
		why:  "a record that goes before its lease or its delay ends lets a second holder in",
		test: func(k *kit) {
			r := k.request("running")
			r.Retention = time.Millisecond
			k.claim(r, dedupstore.AcquiredRun)

			r = k.request("retryable")
			r.Retention = time.Millisecond
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{Delay: long})

			f := finishTo(succeeded(""), receipt)
			f.Retention = time.Millisecond
			k.settle(k.run("publishing"), f)

			k.pass(short)
			k.found(k.claim(k.request("running"), dedupstore.Busy), dedupstore.Running)
			k.found(k.claim(k.request("retryable"), dedupstore.Busy), dedupstore.Retryable)
			k.found(k.claim(k.request("publishing"), dedupstore.Busy), dedupstore.Publishing)

			k.within(200*time.Millisecond, func(k *kit, limit time.Duration) {
				r := k.request("extended")
				r.Lease, r.Retention = limit/2, limit/2
				k.extend(k.claim(r, dedupstore.AcquiredRun).Claim, long)
				k.pass(limit)
				k.found(k.claim(k.request("extended"), dedupstore.Busy), dedupstore.Running)
			})
			k.within(200*time.Millisecond, func(k *kit, limit time.Duration) {
				r := k.request("extended while it publishes")
				r.Lease, r.Retention = limit/2, limit/2
				c := k.claim(r, dedupstore.AcquiredRun).Claim
				f := finishTo(succeeded(""), receipt)
				f.Retention = limit / 2
				k.settle(c, f)
				k.extend(c, long)
				k.pass(limit)
				k.found(k.claim(k.request(r.Key.ID), dedupstore.Busy), dedupstore.Publishing)
			})
		},
	},
	{
		name: "expiry/every-record-has-a-TTL",
		why:  "a record without a TTL stays for ever, and one with too short a TTL forgets what it protects",
		test: func(k *kit) {
			if k.TTL == nil {
				return // then only expiry/forgotten-after-the-window looks at it
			}
			ttl := func(id, what string, want time.Duration) {
				k.Helper()
				got, ok := k.TTL(k.key(id))
				if !ok || got > want+2*time.Second || got < want-long/2 { // some count whole seconds
					k.Errorf("%s: TTL is %v (%t), want %v", what, got, ok, want)
				}
			}
			const window = 5 * long
			r := k.request("1")
			r.Retention = window
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			ttl("1", "running", long+window)
			k.extend(c, 3*long)
			ttl("1", "extended", 3*long+window)
			k.settle(c, dedupstore.Release{Delay: 2 * long})
			ttl("1", "retryable", 2*long+window)

			c = k.run("2")
			k.settle(c, dedupstore.Finish{Outcome: finishTo(succeeded(""), receipt).Outcome, Retention: window})
			ttl("2", "publishing", long+window)
			k.settle(c, dedupstore.Published{Retention: window})
			ttl("2", "published", window)

			k.settle(k.run("3"), dedupstore.Finish{Outcome: failed(""), Retention: window})
			ttl("3", "done", window)

			k.settle(k.run("4"), dedupstore.Release{})
			r = k.request("4")
			r.MaxAttempts, r.Retention = 1, window
			k.claim(r, dedupstore.AcquiredPublish)
			ttl("4", "exhausted", long+window)

			for id, step := range takeovers {
				r := step.leave(k, id, long)
				r.Retention = window
				k.claim(r, step.status)
				ttl(id, id, long+window)
			}
		},
	},
}
