package storetest

import "github.com/oncemill/oncemill/dedupstore"

// after returns a request that refuses the run of a key after so many crashes in a row.
func (k *kit) after(id string, crashes int) dedupstore.Request {
	r := k.request(id)
	r.SuspectAfter, r.MaxAttempts = crashes, 100
	return r
}

// crashes wants a key to have so many crashes in a row behind it. Its next run must be due.
func (k *kit) crashes(id string, want int) {
	k.Helper()
	if want > 0 {
		k.claim(k.after(id, want), dedupstore.Suspect)
	}
	k.settle(k.claim(k.after(id, want+1), dedupstore.AcquiredRun).Claim, dedupstore.Release{Uncounted: true})
}

var crashCases = []testCase{
	{
		name: "crashes/takeover-raises",
		why:  "a message that ends its process each time runs beside others, and spends their attempts",
		test: func(k *kit) {
			k.crashes("1", 0)
			r := k.brief("1")
			r.MaxAttempts = 100
			for n := range 3 {
				r.Owner = newOwner()
				k.expired(r, dedupstore.AcquiredRun)
				k.claim(k.after("1", n+1), dedupstore.Suspect)
			}
			k.crashes("1", 3)
		},
	},
	{
		name: "crashes/refusal-changes-nothing",
		why:  "a message that only waits for its turn loses attempts, or its owner, which is late but there",
		test: func(k *kit) {
			c := k.crashed("1")
			for range 5 {
				a := k.claim(k.after("1", 1), dedupstore.Suspect)
				k.found(a, dedupstore.Running)
				if a.Fence != c.Fence {
					k.Errorf("a refusal names fence %d, want that of the last owner, %d", a.Fence, c.Fence)
				}
			}
			k.settle(c, finish(succeeded("late")))

			k.crashed("2")
			k.claim(k.after("2", 1), dedupstore.Suspect)
			a := k.claim(k.request("2"), dedupstore.AcquiredRun)
			k.attempt(a, 2)
			k.settle(a.Claim, dedupstore.Release{Uncounted: true})
			k.found(k.claim(k.after("2", 1), dedupstore.Suspect), dedupstore.Retryable)
			k.crashes("2", 1)
		},
	},
	{
		name: "crashes/uncounted-release-keeps",
		why:  "each deployment lets a message that ends its process run beside others again",
		test: func(k *kit) {
			k.crashed("1")
			for range 3 {
				k.settle(k.run("1"), dedupstore.Release{Uncounted: true})
				k.crashes("1", 1)
			}
		},
	},
	{
		name: "crashes/end-clears",
		why:  "a message that was near a crash once, and failed since, waits for its turn without a reason",
		test: func(k *kit) {
			k.crashed("1")
			k.settle(k.run("1"), dedupstore.Release{})
			k.crashes("1", 0)

			k.crashed("2")
			c := k.run("2")
			k.settle(c, finish(failed("card refused")))
			r := k.after("2", 1)
			r.Rerun = c.Fence
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{Uncounted: true})
			k.crashes("2", 0)
		},
	},
	{
		name: "crashes/rerun-clears",
		why:  "an operator has mended what killed its process, and it still waits for its turn",
		test: func(k *kit) {
			for _, id := range []string{"by a dead letter", "by hand"} {
				k.crashed(id)
				k.crashed(id)
				spent := k.request(id)
				spent.MaxAttempts = 1
				a := k.claim(spent, dedupstore.AcquiredPublish)
				k.settle(a.Claim, published())
				if id == "by a dead letter" {
					r := k.after(id, 1)
					r.Rerun = a.Fence
					k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{Uncounted: true})
				} else if _, inspects := k.Store.(dedupstore.Inspector); inspects {
					k.change(id, dedupstore.Rerun{})
				} else {
					continue
				}
				k.crashes(id, 0)
			}
		},
	},
	{
		name: "crashes/repeated-claim-tells-the-same",
		why:  "the reply to a granted claim was lost: the owner that asks again must not wait for its own turn",
		test: func(k *kit) {
			k.crashed("1")
			r := k.after("1", 2)
			first := k.claim(r, dedupstore.AcquiredRun)
			for range 3 {
				r.SuspectAfter = 1 // also an owner that has waited for its turn since
				if again := k.claim(r, dedupstore.AcquiredRun); again.Claim != first.Claim {
					k.Errorf("asked again, the owner got %+v, want %+v", again.Claim, first.Claim)
				}
			}
			k.settle(first.Claim, dedupstore.Release{Uncounted: true})
			k.claim(r, dedupstore.Busy) // a late copy
			k.crashes("1", 1)
		},
	},
	{
		name: "crashes/end-comes-first",
		why:  "what runs no more waits for a turn: its dead letter, or its outcome, comes late",
		test: func(k *kit) {
			k.crashed("spent")
			r := k.after("spent", 1)
			r.MaxAttempts = 1
			k.claim(r, dedupstore.AcquiredPublish)

			k.extend(k.run("parked"), short)
			k.pass(short)
			r = k.after("parked", 1)
			r.ParkExpired = true
			k.claim(r, dedupstore.AcquiredPublish)

			k.crashed("done")
			k.settle(k.run("done"), finish(succeeded("")))
			k.claim(k.after("done", 1), dedupstore.Done)

			k.crashed("publishing")
			c := k.claim(k.brief("publishing"), dedupstore.AcquiredRun).Claim
			k.settle(c, finishTo(succeeded(""), receipt))
			k.pass(short)
			k.claim(k.after("publishing", 1), dedupstore.AcquiredPublish)

			k.crashed("busy")
			k.run("busy")
			k.claim(k.after("busy", 1), dedupstore.Busy)
		},
	},
	{
		name: "crashes/are-shown",
		why:  "an operator who looks for what kills his processes finds nothing",
		test: func(k *kit) {
			k.inspector()
			k.crashed("1")
			k.crashed("1")
			c := k.run("1")
			if seen := k.look("1"); seen.Crashes != 2 {
				k.Errorf("%d crashes are shown, want 2", seen.Crashes)
			}
			k.settle(c, dedupstore.Release{Uncounted: true})
			if seen := k.list(dedupstore.Filter{ID: "1"})["1"]; seen.Crashes != 2 {
				k.Errorf("%d crashes are listed, want 2", seen.Crashes)
			}
			k.settle(k.run("1"), finish(succeeded("")))
			if seen := k.look("1"); seen.Crashes != 0 {
				k.Errorf("%d crashes are shown of a record that is done, want none", seen.Crashes)
			}
		},
	},
}
