package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// list returns the records of the case's group that a filter lets through, by ID.
func (k *kit) list(f dedupstore.Filter) map[string]dedupstore.Record {
	k.Helper()
	f.Group = k.group
	records := map[string]dedupstore.Record{}
	for after := ""; ; {
		page, err := k.inspector().List(k.Context(), f, after)
		if err != nil {
			k.Fatalf("list %+v after %q: %v", f, after, err)
		}
		for _, r := range page.Records {
			records[r.Key.ID] = r
		}
		if after = page.Next; after == "" {
			return records
		}
	}
}

// soon asks for what shall be so until it is. A replica that answers may be some milliseconds behind.
func soon(is func() bool) bool {
	for range 20 {
		if is() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// lists wants a filter to let through these IDs.
func (k *kit) lists(what string, f dedupstore.Filter, want ...string) {
	k.Helper()
	var ids []string
	if !soon(func() bool {
		ids = slices.Sorted(maps.Keys(k.list(f)))
		return slices.Equal(ids, want)
	}) {
		k.Errorf("%s: the list has %q, want %q", what, ids, want)
	}
}

// handlers wants these handlers to have records of an ID.
func (k *kit) handlers(id string, want ...string) {
	k.Helper()
	var handlers []string
	if !soon(func() bool {
		handlers = nil
		for after := ""; ; {
			page, err := k.inspector().List(k.Context(), dedupstore.Filter{Group: k.group, ID: id}, after)
			if err != nil {
				k.Fatal(err)
			}
			for _, r := range page.Records {
				handlers = append(handlers, r.Key.Handler)
			}
			if after = page.Next; after == "" {
				break
			}
		}
		slices.Sort(handlers)
		handlers = slices.Compact(handlers)
		return slices.Equal(handlers, want)
	}) {
		k.Errorf("handlers %q have the ID, want %q", handlers, want)
	}
}

// change changes the record of an ID as it is now.
func (k *kit) change(id string, c dedupstore.Change) {
	k.Helper()
	if err := k.inspector().Change(k.Context(), k.look(id), c); err != nil {
		k.Fatalf("%T of %q: %v", c, id, err)
	}
}

// refuses wants a change of a record to be refused, and to change nothing.
func (k *kit) refuses(seen dedupstore.Record, c dedupstore.Change, text ...string) {
	k.Helper()
	before := k.look(seen.Key.ID)
	err := k.inspector().Change(k.Context(), seen, c)
	var refused *dedupstore.RefusedError
	if !errors.As(err, &refused) {
		k.Errorf("%T of %q, %s, returned %v, want a RefusedError", c, seen.Key.ID, before.State, err)
		return
	}
	for _, part := range text {
		if !strings.Contains(err.Error(), part) {
			k.Errorf("the error is %q, want it to name %q", err, part)
		}
	}
	if refused.Found.State != before.State || refused.Found.Fence != before.Fence {
		k.Errorf("the error found %s under fence %d, want %s under %d", refused.Found.State, refused.Found.Fence,
			before.State, before.Fence)
	}
	if after := k.look(seen.Key.ID); after.State != before.State || after.Fence != before.Fence ||
		after.Outcome.Kind != before.Outcome.Kind || after.Attempts != before.Attempts {
		k.Errorf("a refused %T made %+v of %+v", c, after, before)
	}
}

// park makes the outcome of an ID unknown.
func (k *kit) park(id string) {
	k.Helper()
	k.settle(k.run(id), finish(dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: "no answer from the bank"}))
}

var happened = dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte("paid")}}

var inspectCases = []testCase{
	{
		name: "list/by-state-kind-and-reason",
		why:  "an operator who looks for failures must see all of them, and nothing else",
		test: func(k *kit) {
			k.inspector()
			k.run("running")
			k.settle(k.run("retryable"), dedupstore.Release{Reason: "database is down", Delay: long})
			k.settle(k.run("publishing"), finishTo(failed("card refused"), receipt))
			k.settle(k.run("failed"), finish(failed("card expired")))
			k.settle(k.run("succeeded"), finish(succeeded("paid")))
			k.park("unknown")
			states := func(s ...dedupstore.State) dedupstore.Filter { return dedupstore.Filter{States: s} }
			kinds := func(kinds ...dedupstore.Kind) dedupstore.Filter { return dedupstore.Filter{Kinds: kinds} }
			k.lists("all", dedupstore.Filter{}, "failed", "publishing", "retryable", "running", "succeeded", "unknown")
			k.lists("running", states(dedupstore.Running), "running")
			k.lists("what waits", states(dedupstore.Retryable, dedupstore.Publishing), "publishing", "retryable")
			k.lists("failures", kinds(dedupstore.Failed), "failed", "publishing")
			both := states(dedupstore.Finished)
			both.Kinds = []dedupstore.Kind{dedupstore.Failed}
			k.lists("finished failures", both, "failed")
			k.lists("unknown", kinds(dedupstore.Unknown), "unknown")
			k.lists("by reason", dedupstore.Filter{Reason: "card"}, "failed", "publishing")
			k.lists("by the reason of a release", dedupstore.Filter{Reason: "is down"}, "retryable")
			if r := k.list(dedupstore.Filter{ID: "failed"})["failed"]; r.Outcome.Reason != "card expired" ||
				r.Attempts != 1 || r.State != dedupstore.Finished {
				k.Errorf("a record of a list is %+v", r)
			}
		},
	},
	{
		name: "list/by-scope-id-and-age",
		why:  "one message ID has a record for each handler that saw it, and an operator asks for all of them",
		test: func(k *kit) {
			k.inspector()
			other := k.request("1")
			other.Key.Handler = "refund"
			k.claim(other, dedupstore.AcquiredRun)
			k.run("1")
			k.run("1:x") // an ID that another one begins
			r := k.look("1")
			k.handlers("1", "charge", "refund")
			k.lists("one handler", dedupstore.Filter{Handler: "charge"}, "1", "1:x")
			k.lists("the other handler", dedupstore.Filter{Handler: "refund"}, "1")
			k.lists("another tenant", dedupstore.Filter{Tenant: "other"})
			k.lists("since", dedupstore.Filter{ID: "1", Since: r.Claimed.Add(-time.Minute)}, "1")
			k.lists("since later", dedupstore.Filter{ID: "1", Since: r.Claimed.Add(time.Minute)})
			k.lists("before", dedupstore.Filter{ID: "1", Before: r.Claimed.Add(time.Minute)}, "1")
			k.lists("before earlier", dedupstore.Filter{ID: "1", Before: r.Claimed.Add(-time.Minute)})
		},
	},
	{
		name: "list/pages-leave-nobody-out",
		why:  "a failure that no page shows is never mended",
		test: func(k *kit) {
			const n = 2500 // more than a page
			k.inspector()
			var requests []dedupstore.Request
			for i := range n {
				requests = append(requests, k.request(fmt.Sprint(i)))
			}
			for some := range slices.Chunk(requests, 250) {
				for _, r := range k.Store.Claim(k.Context(), some) {
					if r.Err != nil || r.Answer.Status != dedupstore.AcquiredRun {
						k.Fatalf("claim: %s, %v", r.Answer.Status, r.Err)
					}
				}
			}
			got := len(k.list(dedupstore.Filter{}))
			for tries := 0; got < n && tries < 20; tries++ { // a replica may answer that is behind
				k.pass(short)
				got = len(k.list(dedupstore.Filter{}))
			}
			if got != n {
				k.Errorf("the list has %d records, want %d", got, n)
			}
			if got := k.count(); got[dedupstore.Running] != n {
				k.Errorf("%v are counted, want %d running", got, n)
			}
		},
	},
	{
		name: "count/by-scope-and-state",
		why:  "how many failed, and how many duplicates came, is the first figure that anybody asks for",
		test: func(k *kit) {
			i := k.inspector()
			k.run("running")
			k.settle(k.run("1"), finish(succeeded("paid")))
			k.settle(k.run("2"), finish(succeeded("paid")))
			k.settle(k.run("3"), finish(failed("card refused")))
			err := i.NoteDuplicates(k.Context(), []dedupstore.Duplicates{
				{Key: k.key("1"), Count: 4, Last: time.Now(), Retention: long},
				{Key: k.key("2"), Count: 1, Last: time.Now(), Retention: long},
			})
			if err != nil {
				k.Fatal(err)
			}
			got := map[string]dedupstore.Tally{}
			for _, t := range k.tallies(dedupstore.Filter{Group: k.group}) {
				if t.Tenant != "acme" || t.Group != k.group || t.Handler != "charge" {
					k.Errorf("a tally is of another scope: %+v", t)
				}
				sum := got[string(t.State)+string(t.Kind)]
				sum.Records += t.Records
				sum.Duplicates += t.Duplicates
				got[string(t.State)+string(t.Kind)] = sum
			}
			for name, want := range map[string]dedupstore.Tally{
				string(dedupstore.Running):                                 {Records: 1},
				string(dedupstore.Finished) + string(dedupstore.Succeeded): {Records: 2, Duplicates: 5},
				string(dedupstore.Finished) + string(dedupstore.Failed):    {Records: 1},
			} {
				if got[name] != want {
					k.Errorf("%s: %+v, want %+v", name, got[name], want)
				}
			}
			failures := dedupstore.Filter{Group: k.group, Kinds: []dedupstore.Kind{dedupstore.Failed}}
			for _, t := range k.tallies(failures) {
				if t.Kind != dedupstore.Failed {
					k.Errorf("the filter lets a tally through that is not of failures: %+v", t)
				}
			}
		},
	},
	{
		name: "change/forgotten-runs-as-a-first-one",
		why:  "the data of a person that is to be erased stays, or what was counted before stays with the next record",
		test: func(k *kit) {
			i := k.inspector()
			c := k.run("1")
			k.settle(c, finish(succeeded("paid")))
			err := i.NoteDuplicates(k.Context(),
				[]dedupstore.Duplicates{{Key: k.key("1"), Count: 4, Last: time.Now(), Retention: long}})
			if err != nil {
				k.Fatal(err)
			}
			k.change("1", dedupstore.Forget{})
			if r := k.look("1"); r.State != dedupstore.Absent {
				k.Errorf("a forgotten record is still there: %+v", r)
			}
			k.lists("forgotten", dedupstore.Filter{})
			k.pass(0)
			again := k.run("1")
			if again.Attempt != 1 || again.Fence <= c.Fence {
				k.Errorf("the next claim is %+v, want attempt 1 under a fence above %d", again, c.Fence)
			}
			if r := k.look("1"); r.Duplicates != 0 || len(r.History) != 0 {
				k.Errorf("the next record knows what was forgotten: %+v", r)
			}
		},
	},
	{
		name: "change/forgotten-claim-is-lost",
		why:  "a process that was given up, and comes back, must not write the outcome of a message that runs again",
		test: func(k *kit) {
			k.inspector()
			c := k.crashed("1")
			k.change("1", dedupstore.Forget{})
			k.refused(c, finish(succeeded("late")), "a forgotten owner")
		},
	},
	{
		name: "change/refused-while-somebody-holds-it",
		why:  "a change under a handler that runs makes its effect twice",
		test: func(k *kit) {
			k.inspector()
			k.claim(k.by("1", "billing-7d9f:417"), dedupstore.AcquiredRun)
			k.settle(k.run("2"), finishTo(failed("card refused"), receipt))
			for _, c := range []dedupstore.Change{dedupstore.Forget{}, dedupstore.Rerun{}, happened} {
				k.refuses(k.look("1"), c, "billing-7d9f:417", k.look("1").Until.UTC().Format("15:04"), `"1"`)
				k.refuses(k.look("2"), c)
			}
		},
	},
	{
		name: "change/refused-if-it-has-changed",
		why:  "somebody looked at a failure that has run again and succeeded since; forgetting it runs it twice",
		test: func(k *kit) {
			k.inspector()
			c := k.crashed("1")
			seen := k.look("1")
			k.settle(c, finish(succeeded("paid")))
			k.refuses(seen, dedupstore.Forget{})
			k.settle(k.run("2"), finish(failed("card refused")))
			seen = k.look("2")
			rerun := k.request("2")
			rerun.Rerun = seen.Decided
			k.settle(k.claim(rerun, dedupstore.AcquiredRun).Claim, finish(failed("card refused")))
			for _, c := range []dedupstore.Change{dedupstore.Forget{}, dedupstore.Rerun{}} {
				k.refuses(seen, c)
			}
			absent := seen
			absent.Key = k.key("3")
			k.refuses(absent, dedupstore.Forget{}, "no record")
		},
	},
	{
		name: "change/rerun-lets-a-failure-run-again",
		why:  "a failure that was mended can only be forgotten, and with it what is known of it",
		test: func(k *kit) {
			k.inspector()
			k.settle(k.run("1"), finish(failed("card refused")))
			before := k.look("1")
			k.change("1", dedupstore.Rerun{})
			seen := k.look("1")
			if seen.State != dedupstore.Retryable || seen.Attempts != 0 || seen.Reruns != 1 ||
				seen.Until.After(seen.Expires) {
				k.Errorf("a record that is to run again is %+v", seen)
			}
			a := k.claim(k.request("1"), dedupstore.AcquiredRun)
			if a.Claim.Attempt != 1 || a.Claim.Fence <= before.Fence {
				k.Errorf("its claim is %+v, want attempt 1 under a fence above %d", a.Claim, before.Fence)
			}
			seen = k.look("1")
			if seen.Reruns != 1 || len(seen.History) != 1 || seen.History[0].Reason != "card refused" {
				k.Errorf("a record that runs again is %+v, want its failure in its history", seen)
			}
			k.settle(a.Claim, finish(succeeded("paid")))
			k.refuses(k.look("1"), dedupstore.Rerun{}, "succeeded")
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
	{
		name: "change/reruns-are-counted",
		why:  "a failure that comes back after each rerun is a loop that nobody sees",
		test: func(k *kit) {
			k.inspector()
			k.settle(k.run("1"), finish(failed("card refused")))
			for n := range 3 {
				if n == 1 { // by a dead letter
					rerun := k.request("1")
					rerun.Rerun = k.look("1").Decided
					k.settle(k.claim(rerun, dedupstore.AcquiredRun).Claim, finish(failed("card refused")))
				} else {
					k.change("1", dedupstore.Rerun{})
					k.settle(k.run("1"), finish(failed("card refused")))
				}
				if seen := k.look("1"); seen.Reruns != n+1 {
					k.Errorf("%d reruns are known, want %d", seen.Reruns, n+1)
				}
			}
		},
	},
	{
		name: "change/unknown-is-completed",
		why:  "whether a payment happened is known at last, and duplicates still hear that nobody knows",
		test: func(k *kit) {
			k.inspector()
			for _, id := range []string{"did", "did not", "again"} {
				k.park(id)
			}
			k.change("did", happened)
			k.change("did not", dedupstore.Complete{Outcome: failed("the bank never had it")})
			k.change("again", dedupstore.Rerun{})
			if o := k.claim(k.request("did"), dedupstore.Done).Outcome; o.Kind != dedupstore.Succeeded ||
				string(o.Result) != "paid" || o.Reason != "" {
				k.Errorf("the outcome is %+v, want what it was completed with", o)
			}
			if o := k.claim(k.request("did not"), dedupstore.Done).Outcome; o.Kind != dedupstore.Failed ||
				o.Reason != "the bank never had it" || len(o.Result) != 0 {
				k.Errorf("the outcome is %+v, want what it was completed with", o)
			}
			k.claim(k.request("again"), dedupstore.AcquiredRun)
			k.refuses(k.look("did"), happened, "known")
			k.settle(k.run("failed"), finish(failed("card refused")))
			k.refuses(k.look("failed"), happened, "known")
			k.park("meanwhile")
			seen := k.look("meanwhile")
			k.change("meanwhile", happened)
			k.refuses(seen, dedupstore.Forget{}, "when you looked")
			k.settle(k.run("later"), dedupstore.Release{Delay: long})
			k.refuses(k.look("later"), happened)
		},
	},
	{
		name: "change/completed-is-told-from-a-handler's-word",
		why:  "a handler's error says that an operator decided, and everybody believes it",
		test: func(k *kit) {
			k.inspector()
			is := func(id string, want bool) {
				k.Helper()
				if seen := k.look(id); seen.ByOperator != want {
					k.Errorf("of %q it is said that an operator decided it: %t, want %t", id, seen.ByOperator, want)
				}
			}
			word := failed("decided by an operator: do not retry")
			k.settle(k.run("said"), finish(word))
			is("said", false)
			for _, id := range []string{"did", "did not"} {
				k.park(id)
				is(id, false)
			}
			k.change("did", happened)
			is("did", true)
			k.change("did not", dedupstore.Complete{Outcome: word})
			is("did not", true)
			k.change("did not", dedupstore.Rerun{})
			is("did not", false)
			k.settle(k.run("did not"), finish(word))
			is("did not", false)

			k.park("asked")
			k.change("asked", dedupstore.Complete{Outcome: word})
			rerun := k.request("asked") // by a dead letter
			rerun.Rerun = k.look("asked").Decided
			c := k.claim(rerun, dedupstore.AcquiredRun).Claim
			is("asked", false)
			k.settle(c, finish(succeeded("paid")))
			is("asked", false)
		},
	},
	{
		name: "change/completed-keeps-its-dead-letter",
		why:  "nobody can tell any more which dead letter the message has",
		test: func(k *kit) {
			k.inspector()
			c := k.run("1")
			k.settle(c, finishTo(dedupstore.Outcome{Kind: dedupstore.Unknown}, receipt))
			k.settle(c, published())
			k.change("1", happened)
			want := happened.Outcome
			want.Produced = []dedupstore.Produced{receipt}
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, want)
		},
	},
	{
		name: "change/nonsense-is-refused",
		why:  "a slip of the keyboard must not write an outcome that no program can read",
		test: func(k *kit) {
			i := k.inspector()
			k.park("1")
			undecided := dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Unknown}}
			produces := happened
			produces.Outcome.Produced = []dedupstore.Produced{receipt}
			for _, c := range []dedupstore.Change{nil, dedupstore.Complete{}, undecided, produces} {
				var invalid *dedupstore.InvalidError
				if err := i.Change(k.Context(), k.look("1"), c); !errors.As(err, &invalid) {
					k.Errorf("%+v returned %v, want an InvalidError", c, err)
				}
			}
		},
	},
}

// tallies counts what a filter lets through.
func (k *kit) tallies(f dedupstore.Filter) (all []dedupstore.Tally) {
	k.Helper()
	for after := ""; ; {
		c, err := k.inspector().Count(k.Context(), f, after)
		if err != nil {
			k.Fatalf("count after %q: %v", after, err)
		}
		all = append(all, c.Tallies...)
		if after = c.Next; after == "" {
			return all
		}
	}
}

// count is how many records of the case's group are in each state.
func (k *kit) count() map[dedupstore.State]int {
	k.Helper()
	states := map[dedupstore.State]int{}
	for _, t := range k.tallies(dedupstore.Filter{Group: k.group}) {
		states[t.State] += t.Records
	}
	return states
}
