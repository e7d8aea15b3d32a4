package outboxtest

import (
	"slices"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

// ordered ends the case without a failure unless the store keeps order.
func (k *kit) ordered() {
	k.Helper()
	if !k.Ordered {
		k.Skip("skipped: Subject.Ordered is not set")
	}
}

// wantsLane checks which rows of a lane a lease got.
func (k *kit) wantsLane(what string, l leased, orderKey string, ids ...string) {
	k.Helper()
	if got := l.orderKey(orderKey); !slices.Equal(got, ids) {
		k.Fatalf("%s: lane %s got %q, want %q", what, orderKey, got, ids)
	}
}

// writeLanes writes a1, b1, a2, b2, a3, b3, each in a transaction of its own, and one without a key.
func (k *kit) writeLanes() {
	k.Helper()
	k.write(keyed("a", "a1"))
	k.write(keyed("b", "b1"))
	k.write(message("free"))
	k.write(keyed("a", "a2"))
	k.write(keyed("b", "b2"))
	k.write(keyed("a", "a3"), keyed("b", "b3"))
}

var orderCases = []testCase{
	{"order/rows-of-a-lane-come-in-theirs", "consumers see the later state before the earlier one", func(k *kit) {
		k.ordered()
		k.writeLanes()
		l := k.lease()
		k.wantsLane("all at once", l, "a", "a1", "a2", "a3")
		k.wantsLane("all at once", l, "b", "b1", "b2", "b3")
		k.wantsLane("without a key", l, "", "free")
	}},
	{"order/one-lease-a-lane", "two relays publish one key's rows side by side", func(k *kit) {
		k.ordered()
		k.writeLanes()
		first := k.leaseAs(outbox.LeaseRequest{Token: newToken(), Limit: 2, Lease: long})
		second := k.lease()
		for _, orderKey := range []string{"a", "b"} {
			if len(first.orderKey(orderKey)) > 0 && len(second.orderKey(orderKey)) > 0 {
				k.Errorf("lane %s is leased twice: %q and %q", orderKey, first.ids(), second.ids())
			}
		}
		k.settle(first)
		k.settle(second)
		k.wants("after both gave back", "a1", "a2", "a3", "b1", "b2", "b3", "free")
	}},
	{"order/nothing-passes-a-refused-row", "a retry lands behind the rows that follow it", func(k *kit) {
		k.ordered()
		k.writeLanes()
		k.settleOne(k.lease(), "a1", outbox.Result{State: outbox.Failed, Delay: long, Error: "no"})
		l := k.lease()
		k.wantsLane("behind a refused row", l, "a")
		k.wantsLane("in another lane", l, "b", "b1", "b2", "b3")
	}},
	{"order/nothing-passes-a-delayed-row", "a message overtakes the one before it, which was to be published later",
		func(k *kit) {
			k.ordered()
			delayed := keyed("a", "a0")
			delayed.NotBefore = time.Now().Add(long)
			k.write(delayed)
			k.writeLanes()
			l := k.lease()
			k.wantsLane("behind a delayed row", l, "a")
			k.wantsLane("in another lane", l, "b", "b1", "b2", "b3")
		}},
	{"order/nothing-passes-a-suspect", "a row whose acknowledgement was lost lands behind the rows that follow it",
		func(k *kit) {
			k.ordered()
			k.writeLanes()
			k.settleOne(k.lease(), "a1", outbox.Result{State: outbox.Unknown, Error: "no answer"})
			l := k.lease()
			k.wantsLane("behind a suspect", l, "a")
			k.wantsLane("in another lane", l, "b", "b1", "b2", "b3")
			s := k.suspects()
			if got := s.orderKey("a"); len(got) == 0 || got[0] != "a1" {
				k.Fatalf("suspects of the lane are %q, want a1 first", got)
			}
			k.wantsLane("behind a suspect that is leased", k.lease(), "a")
			k.settleOne(s, "a1", outbox.Result{State: outbox.Published})
			k.settle(l)
			k.wantsLane("after the suspect was published", k.lease(), "a", "a2", "a3")
		}},
	{"order/suspects-keep-it-too", "after an outage the rows of a key come in any order", func(k *kit) {
		k.ordered()
		k.inspector() // rows die only where somebody can act
		k.writeLanes()
		k.expired()
		k.write(keyed("a", "a4"))
		k.wantsLane("behind rows whose lease ended", k.lease(), "a")
		s := k.suspects()
		for _, id := range []string{"a1", "b1"} {
			if got := s.orderKey(id[:1]); len(got) == 0 || got[0] != id {
				k.Fatalf("suspects of the lane are %q, want %s first", got, id)
			}
		}
		k.settle(s, outbox.Result{Number: s.row(k, "a1").Number, State: outbox.Unknown, Delay: long,
			Error: "no answer"},
			outbox.Result{Number: s.row(k, "b1").Number, State: outbox.Dead, Error: "too large"})
		s = k.suspects()
		k.wantsLane("suspects behind one that waits", s, "a")
		k.wantsLane("suspects behind a dead row", s, "b")
	}},
	{"order/a-dead-row-blocks-its-lane-only", "a poison row stops the business, or its followers pass it unseen",
		func(k *kit) {
			k.ordered()
			i := k.inspector()
			k.writeLanes()
			k.settleOne(k.lease(), "a1", outbox.Result{State: outbox.Dead, Error: "too large"})
			l := k.lease()
			k.wantsLane("behind a dead row", l, "a")
			k.wantsLane("in another lane", l, "b", "b1", "b2", "b3")
			k.settle(l)
			if n, err := i.Discard(k.Context(), outbox.RowInfo{ID: "a1"}); err != nil || n != 1 {
				k.Fatalf("Discard = %d, %v, want 1", n, err)
			}
			k.wantsLane("after it was discarded", k.lease(), "a", "a2", "a3")
		}},
	{"order/settled-rows-let-the-lane-go-on", "a lane stands still for ever", func(k *kit) {
		k.ordered()
		k.writeLanes()
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "a1").Number, State: outbox.Published},
			outbox.Result{Number: l.row(k, "a2").Number, State: outbox.Removed})
		k.wantsLane("after two were acknowledged", k.lease(), "a", "a3")
	}},
	{"order/stale-token-changes-nothing", "a relay that was paused marks rows of a lane that another one publishes",
		func(k *kit) {
			k.ordered()
			k.writeLanes()
			stale := k.expired()
			next := k.suspects()
			if len(next.rows) == 0 {
				k.Fatal("nothing is handed out after the lease ended")
			}
			k.settleAll(stale, outbox.Result{State: outbox.Removed})
			k.settle(next)
			if again := k.suspects(); len(again.rows) == 0 {
				k.Error("the stale relay's results counted")
			}
		}},
}
