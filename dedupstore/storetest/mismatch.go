package storetest

import "github.com/oncemill/oncemill/dedupstore"

var (
	one      = dedupstore.Fingerprint{Scheme: "sha256", Sum: "one"}
	two      = dedupstore.Fingerprint{Scheme: "sha256", Sum: "two"}
	otherOne = dedupstore.Fingerprint{Scheme: "json.v2", Sum: "1"}
	otherTwo = dedupstore.Fingerprint{Scheme: "json.v2", Sum: "2"}
	none     = dedupstore.Fingerprint{}
)

// of returns a claim for content with the fingerprint.
func (k *kit) of(id string, f dedupstore.Fingerprint) dedupstore.Request {
	r := k.request(id)
	r.Fingerprint = f
	return r
}

var mismatchCases = []testCase{
	{
		name: "mismatch/in-every-state",
		why:  "two messages that share an ID by mistake must not pass for duplicates of each other",
		test: func(k *kit) {
			c := k.claim(k.of("1", one), dedupstore.AcquiredRun).Claim
			mismatch := func(want dedupstore.State) {
				k.Helper()
				k.found(k.claim(k.of("1", two), dedupstore.Mismatch), want)
			}
			mismatch(dedupstore.Running)
			k.settle(c, dedupstore.Release{})
			mismatch(dedupstore.Retryable)
			c = k.claim(k.of("1", one), dedupstore.AcquiredRun).Claim
			f := finishTo(succeeded("paid"), receipt)
			k.settle(c, f)
			mismatch(dedupstore.Publishing)
			k.settle(c, published())
			mismatch(dedupstore.Finished)
			k.keptOutcome(k.claim(k.of("1", one), dedupstore.Done).Outcome, f.Outcome)
		},
	},
	{
		name: "mismatch/does-not-touch-the-record",
		why:  "a message of other content must not take attempts, leases or ownership from the one that was first",
		test: func(k *kit) {
			r := k.of("1", one)
			r.Lease = short
			first := k.expired(r, dedupstore.AcquiredRun).Claim
			k.claim(k.of("1", two), dedupstore.Mismatch) // takes nothing over
			k.extend(first, short)
			k.pass(short)
			k.claim(k.of("1", two), dedupstore.Mismatch) // renews nothing
			second := k.claim(k.of("1", one), dedupstore.AcquiredRun)
			k.attempt(second, 2)
			k.settle(second.Claim, dedupstore.Release{})
			k.claim(k.of("1", two), dedupstore.Mismatch)
			third := k.claim(k.of("1", one), dedupstore.AcquiredRun)
			k.attempt(third, 3)
			k.settle(third.Claim, finish(succeeded("paid")))
			k.claim(k.of("1", two), dedupstore.Mismatch)
			done := k.claim(k.of("1", one), dedupstore.Done)
			k.sameOutcome(done.Outcome, succeeded("paid"))
			if done.Fence != third.Claim.Fence {
				k.Errorf("Done names fence %d, want %d", done.Fence, third.Claim.Fence)
			}
		},
	},
	{
		name: "mismatch/does-not-renew-the-window",
		why:  "a stream of foreign messages must not keep a record for ever",
		test: func(k *kit) {
			f := finish(succeeded(""))
			f.Retention = twice
			k.settle(k.claim(k.of("1", one), dedupstore.AcquiredRun).Claim, f)
			k.pass(short)
			if k.ask(k.of("1", two)).Status != dedupstore.Mismatch {
				return // the machine is slow: the window is over, and this was a first claim
			}
			k.pass(short)
			k.found(k.claim(k.of("1", two), dedupstore.AcquiredRun), dedupstore.Absent)
		},
	},
	{
		name: "mismatch/comes-before-the-owner",
		why:  "an owner that asks again with other content is not asking again",
		test: func(k *kit) {
			r := k.of("1", one)
			k.claim(r, dedupstore.AcquiredRun)
			r.Fingerprint = two
			k.claim(r, dedupstore.Mismatch)
		},
	},
	{
		name: "mismatch/other-schemes-are-not-compared",
		why:  "a new way of computing fingerprints must not turn every redelivery into a mismatch",
		test: func(k *kit) {
			for id, pair := range map[string][2]dedupstore.Fingerprint{
				"other scheme": {one, otherOne}, "none in the record": {none, one}, "none in the claim": {one, none},
				"the same": {one, one},
			} {
				c := k.claim(k.of(id, pair[0]), dedupstore.AcquiredRun).Claim
				k.claim(k.of(id, pair[1]), dedupstore.Busy)
				k.settle(c, finish(succeeded("")))
				k.claim(k.of(id, pair[1]), dedupstore.Done)
			}
		},
	},
	{
		name: "mismatch/granted-runs-store-it",
		why: "the fingerprint is that of the content that is processed: a claim that is told Busy has processed " +
			"nothing",
		test: func(k *kit) {
			for id, step := range map[string]struct {
				first, granted, same, other dedupstore.Fingerprint
			}{
				"none before":  {none, one, one, two},
				"none after":   {one, none, one, two},
				"other scheme": {one, otherOne, otherOne, otherTwo},
			} {
				k.settle(k.claim(k.of(id, step.first), dedupstore.AcquiredRun).Claim, dedupstore.Release{})
				k.claim(k.of(id, step.granted), dedupstore.AcquiredRun)
				k.claim(k.of(id, step.same), dedupstore.Busy)
				k.claim(k.of(id, step.other), dedupstore.Mismatch)
			}
			k.claim(k.of("busy", none), dedupstore.AcquiredRun)
			k.claim(k.of("busy", one), dedupstore.Busy)
			k.claim(k.of("busy", two), dedupstore.Busy)
		},
	},
}
