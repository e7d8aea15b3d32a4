package outboxtest

import (
	"crypto/rand"
	"slices"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

var leaseCases = []testCase{
	{"lease/each-row-to-one-at-a-time", "relays publish the same row side by side", func(k *kit) {
		k.writeIDs("1", "2")
		k.same("first lease", k.lease().ids(), []string{"1", "2"})
		k.same("second lease", k.lease().ids(), nil)
		k.same("suspects meanwhile", k.suspects().ids(), nil)
	}},
	{"lease/at-most-the-limit", "a relay gets more into its memory than it asked for", func(k *kit) {
		k.writeIDs("1", "2", "3")
		if l := k.leaseAs(outbox.LeaseRequest{Token: rand.Text(), Limit: 2, Lease: long}); len(l.rows) != 2 {
			k.Errorf("%d rows, want 2", len(l.rows))
		}
		if l := k.leaseAs(outbox.LeaseRequest{Token: rand.Text(), Limit: 2, Lease: long}); len(l.rows) != 1 {
			k.Errorf("then %d rows, want 1", len(l.rows))
		}
	}},
	{"lease/longest-due-first", "a steady stream of new rows starves old ones", func(k *kit) {
		for _, id := range []string{"a", "b", "c"} {
			k.writeIDs(id)
			k.pass()
		}
		for _, want := range []string{"a", "b", "c"} {
			l := k.leaseAs(outbox.LeaseRequest{Token: rand.Text(), Limit: 1, Lease: long})
			if !slices.Equal(l.ids(), []string{want}) {
				k.Fatalf("got %q, want %q", l.ids(), want)
			}
		}
	}},
	{"lease/given-back-is-due-at-once", "rows that a relay gave back at its stop wait for nothing", func(k *kit) {
		k.writeIDs("1")
		k.settle(k.lease())
		l := k.lease()
		if r := l.row(k, "1"); r.Failures != 0 || r.Unknowns != 0 {
			k.Errorf("row %+v, want nothing counted", r)
		}
	}},
	{"lease/that-ended-counts-an-unknown", "a row that kills each relay that publishes it holds up all others for ever",
		func(k *kit) {
			k.writeIDs("1", "2")
			k.expired()
			k.wants("rows without an unknown attempt, after the lease ended")
			l := k.suspects()
			k.same("suspects", l.ids(), []string{"1", "2"})
			for _, r := range l.rows {
				if r.Unknowns != 1 || r.Failures != 0 {
					k.Errorf("row %+v, want one unknown attempt", r)
				}
			}
			k.settle(l)
			k.wantsSuspects("again", "1", "2")
			if r := k.suspects().row(k, "1"); r.Unknowns != 1 {
				k.Errorf("%d unknown attempts after a lease that was given back, want 1", r.Unknowns)
			}
		}},
	{"lease/lasts-as-long-as-asked", "a batch is published by two relays, because the first one's lease ended early",
		func(k *kit) {
			k.writeIDs("leased", "refused")
			first := k.lease()
			began := time.Now() // the rest is given back, and leased anew below
			k.settle(first, outbox.Result{Number: first.row(k, "refused").Number, State: outbox.Failed, Delay: lasting,
				Error: "no"})
			again := k.leaseAs(outbox.LeaseRequest{Token: rand.Text(), Limit: 100, Lease: lasting}).ids()
			for range 3 {
				k.pass() // 120 of 160 ms
			}
			due, suspects := k.lease().ids(), k.suspects().ids()
			if time.Since(began) >= lasting {
				return // the machine is slow: all of it may have ended
			}
			k.same("leased", again, []string{"leased"})
			k.same("before the delay is over", due, nil)
			k.same("before the lease has ended", suspects, nil)
		}},
	{"lease/suspects-apart", "a row that hangs holds up rows that never did", func(k *kit) {
		k.writeIDs("new", "unanswered", "refused")
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "unanswered").Number, State: outbox.Unknown, Error: "no answer"},
			outbox.Result{Number: l.row(k, "refused").Number, State: outbox.Failed, Error: "no"})
		k.wants("no suspects", "new", "refused")
		k.wantsSuspects("suspects", "unanswered")
	}},
	{"lease/unreadable-row-blocks-nobody", "a row that somebody else spoiled stops all others", func(k *kit) {
		if k.Spoil == nil {
			k.Skip("skipped: Subject.Spoil is not set")
		}
		k.writeIDs("1", "odd", "2")
		if err := k.Spoil("odd"); err != nil {
			k.Fatalf("spoil: %v", err)
		}
		l := k.lease()
		k.same("beside an unreadable row", l.ids(), []string{"1", "odd", "2"})
		for _, r := range l.rows {
			if (r.Problem != "") != (r.Message.ID == "odd") {
				k.Errorf("row %q has the problem %q", r.Message.ID, r.Problem)
			}
		}
	}},
	{"lease/writers-are-not-blocked", "a slow broker stops the business", func(k *kit) {
		k.writeIDs("1")
		k.lease()
		k.writeIDs("2")
		k.wants("written while another row is leased", "2")
	}},
}
