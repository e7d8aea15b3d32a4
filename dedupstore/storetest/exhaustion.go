package storetest

import "github.com/oncemill/oncemill/dedupstore"

var exhaustionCases = []testCase{
	{
		name: "exhaustion/one-claimer-gets-the-dead-letter",
		why: "attempts that crashes have spent must end in one dead letter: without an owner there is none, with " +
			"several there are many",
		test: func(k *kit) {
			r := k.brief("1")
			r.MaxAttempts = 1
			dead := k.expired(r, dedupstore.AcquiredRun).Claim

			last := k.request("1")
			last.MaxAttempts = 1
			a := k.claim(last, dedupstore.AcquiredPublish)
			k.found(a, dedupstore.Running)
			k.grew(dead.Fence, a.Claim.Fence, "end of an ownerless run")
			if o := a.Outcome; o.Kind != dedupstore.Failed || !o.Exhausted || len(o.Produced) != 0 ||
				len(o.Result) != 0 {
				k.Errorf("the outcome is %+v, want failed, exhausted, with nothing produced yet", o)
			}
			if a.Fence != a.Claim.Fence {
				k.Errorf("the outcome was decided under fence %d, want that of the claim that wrote it, %d", a.Fence,
					a.Claim.Fence)
			}
			other := k.request("1")
			other.MaxAttempts = 1
			busy := k.claim(other, dedupstore.Busy)
			k.found(busy, dedupstore.Publishing)
			k.waits(busy)
			if again := k.claim(last, dedupstore.AcquiredPublish); again.Claim != a.Claim {
				k.Errorf("asked again, the claimer got %+v, want %+v", again.Claim, a.Claim)
			}
			k.refused(dead, finish(succeeded("")), "the zombie of the last attempt")
			k.settle(a.Claim, published())
			done := k.claim(other, dedupstore.Done)
			if !done.Outcome.Exhausted || done.Fence != a.Claim.Fence {
				k.Errorf("duplicates get fence %d and %+v, want fence %d and an exhausted failure", done.Fence,
					done.Outcome, a.Claim.Fence)
			}
		},
	},
	{
		name: "exhaustion/dead-letter-is-remembered",
		why: "a duplicate must be able to tell that the dead letter of a failure was published, though the claim " +
			"that decided it had none",
		test: func(k *kit) {
			k.crashed("1")
			r := k.request("1")
			r.MaxAttempts = 1
			a := k.claim(r, dedupstore.AcquiredPublish)
			letter := dedupstore.Produced{ID: "letter", Topic: "dead", Key: "k"}
			k.settle(a.Claim, dedupstore.Published{Retention: long, Produced: []dedupstore.Produced{letter}})
			o := k.claim(k.request("1"), dedupstore.Done).Outcome
			if len(o.Produced) != 1 || o.Produced[0].ID != letter.ID || o.Produced[0].Topic != letter.Topic {
				k.Errorf("duplicates see %v, want the dead letter's ID and topic", o.Produced)
			}
		},
	},
	{
		name: "exhaustion/dead-letter-is-taken-over",
		why:  "whoever has to send the dead letter may die, too",
		test: func(k *kit) {
			k.settle(k.run("1"), dedupstore.Release{})
			r := k.brief("1")
			r.MaxAttempts = 1
			first := k.expired(r, dedupstore.AcquiredPublish)
			r = k.request("1")
			r.MaxAttempts = 1
			second := k.claim(r, dedupstore.AcquiredPublish)
			k.found(second, dedupstore.Publishing)
			k.grew(first.Claim.Fence, second.Claim.Fence, "takeover of the publish step")
			k.sameOutcome(second.Outcome, first.Outcome)
			if second.Fence != first.Fence {
				k.Errorf("the outcome was decided under fence %d, then under %d", first.Fence, second.Fence)
			}
		},
	},
	{
		name: "exhaustion/last-attempt-is-granted",
		why:  "N attempts means N runs, not N-1",
		test: func(k *kit) {
			r := k.brief("1")
			r.MaxAttempts = 2
			k.expired(r, dedupstore.AcquiredRun)
			r.Owner = newOwner()
			k.attempt(k.expired(r, dedupstore.AcquiredRun), 2)
			r.Owner = newOwner()
			k.claim(r, dedupstore.AcquiredPublish)
		},
	},
	{
		name: "parking/started-run-is-parked",
		why:  "an effect that must not be repeated is not tried again when it may have happened",
		test: func(k *kit) {
			c := k.run("1")
			k.extend(c, short)
			k.pass(short)
			r := k.request("1")
			r.ParkExpired, r.MaxAttempts = true, 1 // parking comes before attempts: unknown is not failed
			a := k.claim(r, dedupstore.AcquiredPublish)
			k.found(a, dedupstore.Running)
			k.grew(c.Fence, a.Claim.Fence, "parked")
			if a.Outcome.Kind != dedupstore.Unknown || a.Outcome.Exhausted || len(a.Outcome.Produced) != 0 {
				k.Errorf("the outcome is %+v, want unknown, with nothing produced yet", a.Outcome)
			}
			k.refused(c, finish(succeeded("")), "the zombie of a parked run")
			k.claim(k.request("1"), dedupstore.Busy)
			k.settle(a.Claim, published())
			done := k.claim(k.request("1"), dedupstore.Done)
			if done.Outcome.Kind != dedupstore.Unknown || done.Fence != a.Claim.Fence {
				k.Errorf("duplicates get fence %d and %+v, want fence %d and unknown", done.Fence, done.Outcome,
					a.Claim.Fence)
			}
		},
	},
	{
		name: "parking/unstarted-run-is-retaken",
		why:  "a run whose handler never started had no effect: to park it would lose the message",
		test: func(k *kit) {
			k.crashed("1")
			r := k.brief("1")
			r.ParkExpired = true
			k.attempt(k.expired(r, dedupstore.AcquiredRun), 2)
			r.Owner = newOwner()
			k.attempt(k.claim(r, dedupstore.AcquiredRun), 3)
		},
	},
	{
		name: "parking/extended-but-not-started-is-retaken",
		why:  "a claim made ahead is extended while its message waits for the handler, which has had no effect then",
		test: func(k *kit) {
			c := k.run("1")
			k.extendUnstarted(c, short)
			k.pass(short)
			r := k.request("1")
			r.ParkExpired = true
			k.attempt(k.claim(r, dedupstore.AcquiredRun), 2)
		},
	},
	{
		name: "parking/started-stays-started",
		why:  "an extension that says nothing of the handler must not take back that it has been called",
		test: func(k *kit) {
			c := k.run("1")
			k.extend(c, long)
			k.extendUnstarted(c, short)
			k.pass(short)
			r := k.request("1")
			r.ParkExpired = true
			k.claim(r, dedupstore.AcquiredPublish)
		},
	},
	{
		name: "parking/mark-goes-with-the-run",
		why: "that an earlier run had started says nothing about the one that took over, nor about one after a " +
			"release",
		test: func(k *kit) {
			c := k.run("takeover")
			k.extend(c, short)
			k.pass(short)
			k.crashed("takeover") // takes over without ParkExpired
			r := k.request("takeover")
			r.ParkExpired = true
			k.attempt(k.claim(r, dedupstore.AcquiredRun), 3)

			c = k.run("release")
			k.extend(c, long)
			k.settle(c, dedupstore.Release{})
			r = k.brief("release")
			r.ParkExpired = true
			k.attempt(k.expired(r, dedupstore.AcquiredRun), 2)
			r.Owner = newOwner()
			k.attempt(k.claim(r, dedupstore.AcquiredRun), 3)
		},
	},
	{
		name: "parking/only-on-request",
		why:  "without the policy a started run that crashed is tried again",
		test: func(k *kit) {
			c := k.run("1")
			k.extend(c, short)
			k.pass(short)
			k.attempt(k.claim(k.request("1"), dedupstore.AcquiredRun), 2)
		},
	},
}
