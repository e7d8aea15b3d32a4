package outboxtest

import (
	"sync"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

var settleCases = []testCase{
	{"settle/acknowledged-is-not-handed-out-again", "every message is published again and again", func(k *kit) {
		k.writeIDs("published", "removed")
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "published").Number, State: outbox.Published},
			outbox.Result{Number: l.row(k, "removed").Number, State: outbox.Removed})
		k.wants("after both were acknowledged")
		k.wantsSuspects("suspects after both were acknowledged")
		k.write(message("removed"))
		k.wants("a removed message that is written again", "removed")
	}},
	{"settle/refused-comes-again-after-its-delay", "a broker that refuses is asked in a hot loop, or never again",
		func(k *kit) {
			k.writeIDs("1")
			k.settleAll(k.lease(), outbox.Result{State: outbox.Failed, Delay: short, Error: "no"})
			k.pass()
			l := k.lease()
			if r := l.row(k, "1"); r.Failures != 1 || r.Unknowns != 0 {
				k.Errorf("row %+v, want one failure", r)
			}
			k.settleAll(l, outbox.Result{State: outbox.Failed, Delay: long, Error: "no"})
			k.wants("before the delay is over")
			k.wantsSuspects("suspects before the delay is over")
		}},
	{"settle/unanswered-comes-again-after-its-delay", "a message whose acknowledgement was lost is lost", func(k *kit) {
		k.writeIDs("1")
		k.settleAll(k.lease(), outbox.Result{State: outbox.Unknown, Delay: short, Error: "no answer"})
		k.pass()
		l := k.suspects()
		if r := l.row(k, "1"); r.Unknowns != 1 || r.Failures != 0 {
			k.Errorf("row %+v, want one unknown attempt", r)
		}
		k.settleAll(l, outbox.Result{State: outbox.Unknown, Delay: long, Error: "no answer"})
		k.wantsSuspects("before the delay is over")
	}},
	{"settle/dead-is-not-handed-out", "a poison row is tried for ever", func(k *kit) {
		k.writeIDs("poison", "good")
		k.settleOne(k.lease(), "poison", outbox.Result{State: outbox.Dead, Error: "too large"})
		k.wants("beside a dead row", "good")
		k.wantsSuspects("suspects")
	}},
	{"settle/rest-is-given-back", "rows that a relay did not get to wait for their lease to end, and count as suspects",
		func(k *kit) {
			k.writeIDs("1", "2")
			k.settleOne(k.lease(), "1", outbox.Result{State: outbox.Published})
			k.wants("what was not settled", "2")
		}},
	{"settle/repeated-changes-nothing",
		"a reply that was lost counts an attempt twice, or takes a row from its next owner", func(k *kit) {
			k.writeIDs("refused", "rest")
			l := k.lease()
			failed := outbox.Result{Number: l.row(k, "refused").Number, State: outbox.Failed, Error: "no"}
			k.settle(l, failed)
			next := k.lease()
			k.same("after the first settle", next.ids(), []string{"refused", "rest"})
			k.settle(l, failed)
			if n := next.row(k, "refused").Failures; n != 1 {
				k.Errorf("%d failures, want 1", n)
			}
			k.wants("while another lease holds the rows")
			k.settle(next)
			if n := k.lease().row(k, "refused").Failures; n != 1 {
				k.Errorf("%d failures after a repeated settle, want 1", n)
			}
		}},
	{"settle/stale-token-changes-nothing", "a relay that was paused marks rows that another one is publishing",
		func(k *kit) {
			k.writeIDs("1", "2", "3")
			stale := k.expired()
			next := k.suspects()
			k.same("the next lease", next.ids(), []string{"1", "2", "3"})
			k.settle(stale, outbox.Result{Number: stale.row(k, "1").Number, State: outbox.Removed},
				outbox.Result{Number: stale.row(k, "2").Number, State: outbox.Dead, Error: "late"},
				outbox.Result{Number: stale.row(k, "3").Number, State: outbox.Published})
			k.wantsSuspects("while the next lease holds the rows")
			k.settle(next)
			k.wantsSuspects("after it", "1", "2", "3")
		}},
	{"settle/ended-lease-holds-until-somebody-takes-it",
		"a slow relay's acknowledged rows are published again although nobody else came", func(k *kit) {
			k.writeIDs("1")
			k.settleAll(k.expired(), outbox.Result{State: outbox.Published})
			k.wants("after a late result")
			k.wantsSuspects("suspects after a late result")
		}},
	{"settle/unknown-state-is-an-error-and-changes-nothing", "half of a batch is settled", func(k *kit) {
		k.writeIDs("1", "2")
		l := k.lease()
		err := k.Store.Settle(k.Context(), l.token, []outbox.Result{
			{Number: l.rows[0].Number, State: outbox.Published}, {Number: l.rows[1].Number, State: "odd"},
		})
		if err == nil {
			k.Error("no error for an unknown state")
		}
		k.same("leased meanwhile", k.lease().ids(), nil)
		k.settle(l)
		k.wants("after giving back", "1", "2")
	}},
}

var concurrencyCases = []testCase{
	{"concurrency/each-row-once", "two relays publish the same row though nothing failed", func(k *kit) {
		const relays, rows = 4, 60
		for _, id := range numbered("row ", rows) {
			k.writeIDs(id)
		}
		var mu sync.Mutex
		seen := map[string]int{}
		var all sync.WaitGroup
		for range relays {
			all.Go(func() {
				for idle := 0; idle < 3; {
					token := newToken()
					got, err := k.Store.Lease(k.Context(), outbox.LeaseRequest{Token: token, Limit: 7, Lease: long})
					if err != nil {
						k.Errorf("lease: %v", err)
						return
					}
					if len(got) == 0 {
						idle++
					}
					var results []outbox.Result
					mu.Lock()
					for _, r := range got {
						seen[r.Message.ID]++
						results = append(results, outbox.Result{Number: r.Number, State: outbox.Published})
					}
					mu.Unlock()
					<-time.After(time.Millisecond) // the others look meanwhile
					if err := k.Store.Settle(k.Context(), token, results); err != nil {
						k.Errorf("settle: %v", err)
						return
					}
				}
			})
		}
		all.Wait()
		for id, n := range seen {
			if n != 1 {
				k.Errorf("%q was handed out %d times", id, n)
			}
		}
		if len(seen) != rows {
			k.Errorf("%d rows were handed out, want %d", len(seen), rows)
		}
	}},
}
