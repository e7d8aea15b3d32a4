package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// inspector is the store's, or ends the case without a failure.
func (k *kit) inspector() dedupstore.Inspector {
	k.Helper()
	i, ok := k.Store.(dedupstore.Inspector)
	if !ok {
		k.Skipf("skipped: %T does not implement dedupstore.Inspector", k.Store)
	}
	return i
}

// look returns the record of an ID.
func (k *kit) look(id string) dedupstore.Record {
	k.Helper()
	records, err := k.inspector().Look(k.Context(), []dedupstore.Key{k.key(id)})
	if err != nil || len(records) != 1 {
		k.Fatalf("look at %q returned %d records, error %v", id, len(records), err)
	}
	return records[0]
}

// by returns a claim by a holder.
func (k *kit) by(id, holder string) dedupstore.Request { //nolint:unparam // a case shows its ID
	r := k.request(id)
	r.Holder = holder
	return r
}

// about is how far two times may be apart: some stores know their server's time only as well as its answers come, and
// on a busy machine these take seconds. What cases tell apart is minutes apart.
const about = 15 * time.Second

// near wants two times to be the same, as far as stores can know.
func (k *kit) near(what string, got, want time.Time) {
	k.Helper()
	if d := got.Sub(want).Abs(); d > about {
		k.Errorf("%s is %v, %v from %v", what, got, d, want)
	}
}

var evidenceCases = []testCase{
	{
		name: "evidence/who-holds-it",
		why:  "on call the first question is which process is at it, since when and until when",
		test: func(k *kit) {
			k.inspector()
			r := k.by("1", "billing-7d9f-x2x9k:417")
			r.Trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			if c.Holder != r.Holder {
				k.Errorf("the claim names holder %q, want %q", c.Holder, r.Holder)
			}
			seen := k.look("1")
			if seen.State != dedupstore.Running || seen.Started || seen.Holder != r.Holder || seen.Fence != c.Fence ||
				seen.Attempts != 1 || seen.Trace != r.Trace || !seen.Ended.IsZero() || len(seen.History) != 0 {
				k.Errorf("a running record looks like %+v", seen)
			}
			k.near("Until", seen.Until, seen.Claimed.Add(long))
			k.near("First", seen.First, seen.Claimed)
			k.near("Expires", seen.Expires, seen.Claimed.Add(2*long))
			k.extend(c, long)
			if !k.look("1").Started {
				k.Error("a run whose handler has been called does not look started")
			}
		},
	},
	{
		name: "evidence/what-became-of-it",
		why:  "a customer asks what happened: when it was done, how long that took, by whom, under which fence",
		test: func(k *kit) {
			k.inspector()
			c := k.claim(k.by("1", "host:1"), dedupstore.AcquiredRun).Claim
			f := finish(failed("card refused"))
			f.Took = 15 * time.Minute
			k.settle(c, f)
			seen := k.look("1")
			if seen.State != dedupstore.Finished || seen.Holder != "host:1" || seen.Decided != c.Fence ||
				seen.Outcome.Reason != "card refused" || seen.Outcome.Kind != dedupstore.Failed {
				k.Errorf("a finished record looks like %+v", seen)
			}
			k.near("Ended", seen.Ended, seen.Claimed.Add(f.Took))
			if absent := k.look("2"); absent.State != dedupstore.Absent || absent.Key != k.key("2") {
				k.Errorf("a key that was never claimed looks like %+v", absent)
			}
		},
	},
	{
		name: "evidence/attempts-with-their-reasons",
		why:  "why a message was tried again stands nowhere else when the logs of its first host are gone",
		test: func(k *kit) {
			k.inspector()
			k.settle(k.claim(k.by("1", "a:1"), dedupstore.AcquiredRun).Claim,
				dedupstore.Release{Reason: "database is down", Took: 5 * time.Minute})
			crashing := k.by("1", "b:2")
			crashing.Lease = short
			k.expired(crashing, dedupstore.AcquiredRun)
			k.claim(k.by("1", "c:3"), dedupstore.AcquiredRun)
			seen := k.look("1")
			if len(seen.History) != 2 || seen.Holder != "c:3" || seen.Attempts != 3 {
				k.Fatalf("after a release and a crash the record looks like %+v", seen)
			}
			released, crashed := seen.History[0], seen.History[1]
			if released.Holder != "a:1" || released.Reason != "database is down" {
				k.Errorf("the run that was released is %+v", released)
			}
			k.near("its end", released.Ended, released.Claimed.Add(5*time.Minute))
			k.near("its claim", released.Claimed, seen.First)
			if crashed.Holder != "b:2" || crashed.Reason != "" || !crashed.Ended.IsZero() {
				k.Errorf("the run that crashed is %+v", crashed)
			}
		},
	},
	{
		name: "evidence/is-bounded",
		why:  "a message that fails for weeks must not fill the store with its past",
		test: func(k *kit) {
			k.inspector()
			r := k.request("1")
			r.MaxAttempts = 100
			for i := range dedupstore.MaxHistory + 3 {
				r.Owner, r.Holder = newOwner(), "host:"+string(rune('a'+i))
				reason := strings.Repeat("é", dedupstore.MaxReason/2)
				k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{Reason: reason})
			}
			seen := k.look("1")
			var holders []string
			for _, past := range seen.History {
				holders = append(holders, past.Holder)
				if !strings.HasPrefix(past.Reason, "éé") || strings.Trim(past.Reason, "é") != "" {
					k.Errorf("the reason of a past attempt is %q", past.Reason)
				}
			}
			if want := []string{"host:c", "host:d", "host:e", "host:f"}; !slices.Equal(holders, want) {
				k.Errorf("the past attempts are those of %q, want %q", holders, want)
			}
		},
	},
	{
		name: "evidence/duplicates-are-counted-beside-the-record",
		why:  "how many copies of a payment came, and when the last did, tells a customer from a defect",
		test: func(k *kit) {
			i := k.inspector()
			k.settle(k.run("1"), finish(succeeded("paid")))
			last := time.Now()
			for n := range 2 {
				err := i.NoteDuplicates(k.Context(), []dedupstore.Duplicates{
					{Key: k.key("1"), Count: n + 1, Last: last.Add(time.Duration(n-1) * time.Minute), Retention: long},
					{Key: k.key("nobody"), Count: 1, Last: last, Retention: long},
				})
				if err != nil {
					k.Fatal(err)
				}
			}
			seen := k.look("1")
			if seen.Duplicates != 3 {
				k.Errorf("%d duplicates are known, want 3", seen.Duplicates)
			}
			k.near("LastDuplicate", seen.LastDuplicate, last)
			if n := k.look("nobody"); n.State != dedupstore.Absent {
				k.Errorf("duplicates of a key without a record made one: %+v", n)
			}
			k.claim(k.request("1"), dedupstore.Done)
		},
	},
}
