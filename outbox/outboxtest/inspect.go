package outboxtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func newToken() string { return rand.Text() }

var cleanCases = []testCase{
	{"clean/old-published-rows-only", "rows are deleted that were never published, or that were to be kept",
		func(k *kit) {
			k.writeIDs("1", "2", "3", "dead", "pending")
			l := k.lease()
			var results []outbox.Result
			for _, r := range l.rows {
				switch r.Message.ID {
				case "dead":
					results = append(results, outbox.Result{Number: r.Number, State: outbox.Dead})
				case "pending":
				default:
					results = append(results, outbox.Result{Number: r.Number, State: outbox.Published})
				}
			}
			k.settle(l, results...)
			k.pass()
			for _, step := range []struct {
				age         time.Duration
				limit, want int
			}{{long, 10, 0}, {0, 2, 2}, {0, 2, 1}, {0, 2, 0}} {
				if n, err := k.Store.Clean(k.Context(), step.age, step.limit); err != nil || n != step.want {
					k.Errorf("Clean(%v, %d) = %d, %v, want %d", step.age, step.limit, n, err, step.want)
				}
			}
			k.wants("after cleaning", "pending")
		}},
}

var inspectCases = []testCase{
	{"inspect/counts", "an operator sees an empty outbox while messages wait", func(k *kit) {
		i := k.inspector()
		later := message("later")
		later.NotBefore = time.Now().Add(long)
		k.write(message("dead"), message("published"), message("pending"), later)
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "dead").Number, State: outbox.Dead, Error: "no"},
			outbox.Result{Number: l.row(k, "published").Number, State: outbox.Published})
		k.pass()
		k.lease() // what is leased is pending, too
		s, err := i.Stats(k.Context())
		if err != nil || s.Pending != 2 || s.Dead != 1 || s.Oldest < short || s.Oldest > long {
			k.Errorf("stats %+v, %v, want 2 pending, the oldest for at least %v, and 1 dead", s, err, short)
		}
	}},
	{"inspect/delayed-rows-are-not-late", "the alert for an outbox that stands still fires in vain", func(k *kit) {
		later := message("later")
		later.NotBefore = time.Now().Add(long)
		k.write(later)
		k.pass()
		if s, err := k.inspector().Stats(k.Context()); err != nil || s.Pending != 1 || s.Oldest != 0 {
			k.Errorf("stats %+v, %v, want one pending row that is not late", s, err)
		}
	}},
	{"inspect/dead-rows-tell-why", "an operator cannot see why a message was not published", func(k *kit) {
		k.inspector()
		k.writeIDs("first", "second")
		l := k.lease()
		k.settleOne(l, "first", outbox.Result{State: outbox.Dead, Error: "too large"})
		k.pass()
		k.settleOne(k.lease(), "second", outbox.Result{State: outbox.Dead, Error: "no such topic"})
		dead := k.list(outbox.Filter{States: []outbox.State{outbox.Dead}})
		if len(dead) != 2 || dead[0].ID != "first" || dead[0].Error != "too large" || dead[0].Topic != "orders" ||
			dead[0].Failures != 1 || dead[1].ID != "second" || dead[0].State != outbox.Dead ||
			dead[0].Ended.Before(dead[0].Written) || dead[0].Written.IsZero() || !dead[0].Due.IsZero() {
			k.Errorf("dead rows %+v", dead)
		}
	}},
	{"inspect/lists-what-was-asked-for", "an operator acts on other rows than those that were meant", func(k *kit) {
		later, other := message("delayed"), message("other")
		later.NotBefore, other.Topic, other.Header = time.Now().Add(long), "elsewhere", producer.Header{"tenant": "a"}
		k.writeIDs("dead", "published", "leased")
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "dead").Number, State: outbox.Dead, Error: "no"},
			outbox.Result{Number: l.row(k, "published").Number, State: outbox.Published})
		k.same("leased", k.lease().ids(), []string{"leased"})
		k.pass()
		between := time.Now()
		k.pass()
		k.write(later, other)
		states := func(s ...outbox.State) outbox.Filter { return outbox.Filter{States: s} }
		for _, tc := range []struct {
			name   string
			filter outbox.Filter
			want   []string
		}{
			{"all", outbox.Filter{}, []string{"dead", "delayed", "leased", "other", "published"}},
			{"pending", states(outbox.Pending), []string{"other"}},
			{"delayed", states(outbox.Delayed), []string{"delayed"}},
			{"leased", states(outbox.Leased), []string{"leased"}},
			{"dead or published", states(outbox.Dead, outbox.Published), []string{"dead", "published"}},
			{"topic", outbox.Filter{Topic: "elsewhere"}, []string{"other"}},
			{"ID", outbox.Filter{ID: "published"}, []string{"published"}},
			{"since", outbox.Filter{Since: between}, []string{"delayed", "other"}},
			{"before", outbox.Filter{Before: between}, []string{"dead", "leased", "published"}},
			{"nothing", outbox.Filter{Topic: "elsewhere", ID: "dead"}, nil},
		} {
			var ids []string
			for _, r := range k.list(tc.filter) {
				ids = append(ids, r.ID)
				if r.Header != nil || r.Written.IsZero() ||
					r.Due.IsZero() != (r.State != outbox.Pending && r.State != outbox.Delayed) ||
					r.Ended.IsZero() != (r.State != outbox.Dead && r.State != outbox.Published) {
					k.Errorf("%s: row %+v, want its times and no header", tc.name, r)
				}
			}
			k.same(tc.name, ids, tc.want)
		}
		if rows := k.list(outbox.Filter{ID: "other", Header: true}); len(rows) != 1 || rows[0].Header.Get("tenant") != "a" {
			k.Errorf("rows %+v, want one with its header", rows)
		}
	}},
	{"inspect/lists-many-in-pages", "a list of a large outbox takes its memory, or leaves rows out", func(k *kit) {
		ids := numbered("m", 1200)
		var messages []producer.Message
		for _, id := range ids {
			messages = append(messages, message(id))
		}
		k.write(messages...)
		var got []string
		for _, r := range k.list(outbox.Filter{}) {
			got = append(got, r.ID)
		}
		k.same("all pages", got, ids)
		if page, err := k.inspector().List(k.Context(), outbox.Filter{}, ""); err != nil || page.Next == "" {
			k.Errorf("the first page has all %d rows, %v", len(page.Rows), err)
		}
	}},
	{"inspect/counts-by-topic", "an operator looks for the trouble in the wrong topic", func(k *kit) {
		other := message("other")
		other.Topic = "elsewhere"
		k.writeIDs("dead", "published 1", "published 2")
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "dead").Number, State: outbox.Dead},
			outbox.Result{Number: l.row(k, "published 1").Number, State: outbox.Published},
			outbox.Result{Number: l.row(k, "published 2").Number, State: outbox.Published})
		k.write(other)
		k.pass()
		counted := k.count(outbox.Filter{})
		want := map[outbox.Tally]int{
			{Topic: "orders", State: outbox.Dead}: 1, {Topic: "orders", State: outbox.Published}: 2,
			{Topic: "elsewhere", State: outbox.Pending}: 1,
		}
		if !maps.Equal(counted, want) {
			k.Errorf("counted %v, want %v", counted, want)
		}
		pending := outbox.Filter{States: []outbox.State{outbox.Pending}}
		c, err := k.inspector().Count(k.Context(), pending, "")
		if err != nil || len(c.Tallies) != 1 || c.Tallies[0].Oldest < short || c.Tallies[0].Oldest > long {
			k.Errorf("counted %+v, %v, want one pending row that waits for at least %v", c, err, short)
		}
	}},
	{"inspect/filter-is-checked", "a slip of the keyboard lists nothing, as if all were well", func(k *kit) {
		for field, bad := range map[string]outbox.Filter{
			"Filter.States": {States: []outbox.State{outbox.Failed}},
			"Filter.Since":  {Since: time.Now(), Before: time.Now().Add(-long)},
		} {
			var invalid *dedupstore.InvalidError
			if _, err := k.inspector().List(k.Context(), bad, ""); !errors.As(err, &invalid) || invalid.Field != field {
				k.Errorf("List: error %v, want one for %s", err, field)
			}
			if _, err := k.inspector().Count(k.Context(), bad, ""); !errors.As(err, &invalid) || invalid.Field != field {
				k.Errorf("Count: error %v, want one for %s", err, field)
			}
		}
		if _, err := k.inspector().List(k.Context(), outbox.Filter{}, "no page"); err == nil {
			k.Error("List goes on behind no page")
		}
	}},
	{"inspect/requeued-is-pending-again", "a message that died in an outage can never be published", func(k *kit) {
		i := k.inspector()
		k.writeIDs("1", "2", "pending")
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "1").Number, State: outbox.Dead},
			outbox.Result{Number: l.row(k, "2").Number, State: outbox.Dead})
		if n, err := i.Requeue(k.Context(), rows("1", "pending", "unheard of")...); err != nil || n != 1 {
			k.Errorf("Requeue = %d, %v, want 1", n, err)
		}
		if n, err := i.Requeue(k.Context()); err != nil || n != 0 {
			k.Errorf("Requeue of nothing = %d, %v, want 0", n, err)
		}
		l = k.lease()
		k.same("due", l.ids(), []string{"1", "pending"})
		if r := l.row(k, "1"); r.Failures != 0 || r.Unknowns != 0 {
			k.Errorf("row %+v, want nothing counted", r)
		}
	}},
	{"inspect/discarded-is-gone", "a poison row can only be removed by hand, or takes others with it", func(k *kit) {
		i := k.inspector()
		k.writeIDs("1", "2", "pending")
		l := k.lease()
		k.settle(l, outbox.Result{Number: l.row(k, "1").Number, State: outbox.Dead},
			outbox.Result{Number: l.row(k, "2").Number, State: outbox.Dead})
		if n, err := i.Discard(k.Context(), rows("1", "pending", "unheard of")...); err != nil || n != 1 {
			k.Errorf("Discard = %d, %v, want 1", n, err)
		}
		if s, err := i.Stats(k.Context()); err != nil || s.Dead != 1 || s.Pending != 1 {
			k.Errorf("stats %+v, %v, want the other dead row and the pending one", s, err)
		}
	}},
	{"inspect/only-what-was-shown", "an operator discards a row that nobody has looked at", func(k *kit) {
		i := k.inspector()
		other := message("1")
		other.Topic = "another-topic"
		k.write(message("1"), other)
		k.settleAll(k.lease(), outbox.Result{State: outbox.Dead})
		shown := k.dead(message("1").Topic)
		if n, err := i.Requeue(k.Context(), shown); err != nil || n != 1 {
			k.Errorf("Requeue = %d, %v, want 1", n, err)
		}
		k.pass()
		k.settleAll(k.lease(), outbox.Result{State: outbox.Dead})
		if n, err := i.Discard(k.Context(), shown); err != nil || n != 0 {
			k.Errorf("Discard of a row that has died again since = %d, %v, want 0", n, err)
		}
		if n, err := i.Discard(k.Context(), k.dead(shown.Topic)); err != nil || n != 1 {
			k.Errorf("Discard = %d, %v, want 1", n, err)
		}
		if s, err := i.Stats(k.Context()); err != nil || s.Dead != 1 {
			k.Errorf("stats %+v, %v, want the dead row of the other topic", s, err)
		}
	}},
	{"inspect/written-again-revives", "an action that is repeated to get its message out leaves it dead", func(k *kit) {
		k.writeIDs("1")
		k.settleAll(k.lease(), outbox.Result{State: outbox.Dead, Error: "no"})
		again := message("1")
		again.Header = producer.Header{"again": "yes"}
		k.write(again)
		l := k.lease()
		if r := l.row(k, "1"); r.Failures != 0 || r.Unknowns != 0 || r.Message.Header.Get("again") != "yes" {
			k.Errorf("row %+v, want nothing counted, and the new header", r)
		}
	}},
	{"inspect/revived-if-and-only-if-committed", "a dead message is published by a transaction that was rolled back",
		func(k *kit) {
			k.writeIDs("1")
			k.settleAll(k.lease(), outbox.Result{State: outbox.Dead, Error: "no"})
			tx := k.begin()
			k.publish(tx, message("1"))
			k.rollback(tx)
			k.wants("after a rollback")
		}},
}

var replayCases = []testCase{
	{"replay/published-comes-again-as-a-copy",
		"a broker that lost messages takes the replay for duplicates, or consumers take it for new messages",
		func(k *kit) {
			r := k.replayer()
			k.writeIDs("1", "2", "3", "dead", "pending")
			l := k.lease()
			var results []outbox.Result
			for _, row := range l.rows {
				switch row.Message.ID {
				case "dead":
					results = append(results, outbox.Result{Number: row.Number, State: outbox.Dead})
				case "pending":
					results = append(results, outbox.Result{Number: row.Number, State: outbox.Failed, Delay: long})
				default:
					results = append(results, outbox.Result{Number: row.Number, State: outbox.Published})
				}
			}
			k.settle(l, results...)
			for generation := 1; generation <= 2; generation++ {
				k.pass()
				replayAll(k, r, outbox.ReplayRequest{Before: time.Now(), IDs: []string{"1", "2", "dead", "pending"},
					Limit: 1}, 2)
				l := k.lease()
				k.same("replayed", l.ids(), []string{"1", "2"})
				for _, row := range l.rows {
					h := row.Message.Header
					if h.Get(producer.HeaderID) != row.Message.ID ||
						h.Get(producer.HeaderPurpose) != producer.PurposeReplay ||
						h.Get(producer.HeaderGeneration) != strconv.Itoa(generation) || row.Failures+row.Unknowns != 0 {
						k.Errorf("row %+v, want the purpose %s, generation %d and nothing counted", row,
							producer.PurposeReplay, generation)
					}
				}
				k.settleAll(l, outbox.Result{State: outbox.Published})
			}
			k.writeIDs("1")
			k.wants("a replayed message that is written again")
		}},
	{"replay/only-what-was-asked-for", "a replay of one topic, or of one hour, floods all consumers", func(k *kit) {
		r := k.replayer()
		other := message("other topic")
		other.Topic = "elsewhere"
		k.write(message("old"))
		k.settleAll(k.lease(), outbox.Result{State: outbox.Published})
		k.pass()
		between := time.Now()
		k.pass()
		k.write(message("new"), other)
		k.settleAll(k.lease(), outbox.Result{State: outbox.Published})
		k.pass()
		replayAll(k, r, outbox.ReplayRequest{Since: between, Before: time.Now(), Topic: "orders", Limit: 10}, 1)
		l := k.lease()
		k.same("since the time between", l.ids(), []string{"new"})
		k.settleAll(l, outbox.Result{State: outbox.Published})
		replayAll(k, r, outbox.ReplayRequest{Before: between, Limit: 10}, 1)
		k.wants("before the time between", "old")
	}},
	{"replay/only-with-the-headers", "a replay for one customer floods all others", func(k *kit) {
		r := k.replayer()
		a, b, both := message("a"), message("b"), message("both")
		a.Header, b.Header = producer.Header{"Tenant": "a", "kind": "x"}, producer.Header{"Tenant": "b"}
		both.Header = producer.Header{"tenant": "a", "kind": "y"}
		k.write(a, b, both, message("none"))
		k.settleAll(k.lease(), outbox.Result{State: outbox.Published})
		k.pass()
		for _, tc := range []struct {
			header producer.Header
			want   []string
		}{
			{producer.Header{"tenant": "a"}, []string{"a", "both"}},
			{producer.Header{"tenant": "a", "kind": "y"}, []string{"both"}},
			{producer.Header{"tenant": "nobody"}, nil},
			{producer.Header{}, []string{"a", "b", "both", "none"}},
		} {
			replayAll(k, r, outbox.ReplayRequest{Before: time.Now(), Header: tc.header, Limit: 10}, len(tc.want))
			l := k.lease()
			k.same(fmt.Sprint(tc.header), l.ids(), tc.want)
			k.settleAll(l, outbox.Result{State: outbox.Published})
			k.pass()
		}
	}},
	{"replay/request-is-checked", "a replay without an end never ends", func(k *kit) {
		for field, bad := range map[string]outbox.ReplayRequest{
			"ReplayRequest.Before": {Limit: 1}, "ReplayRequest.Limit": {Before: time.Now()},
			"ReplayRequest.IDs":   {Before: time.Now(), Limit: 1, IDs: []string{}},
			"ReplayRequest.Since": {Since: time.Now().Add(long), Before: time.Now(), Limit: 1},
		} {
			var invalid *dedupstore.InvalidError
			if _, err := k.replayer().Replay(k.Context(), bad); !errors.As(err, &invalid) || invalid.Field != field {
				k.Errorf("error %v, want one for %s", err, field)
			}
		}
	}},
}

// replayAll calls Replay until there is no more, and checks the total.
func replayAll(k *kit, r outbox.Replayer, request outbox.ReplayRequest, want int) {
	k.Helper()
	total := 0
	for range want + 2 {
		n, err := r.Replay(k.Context(), request)
		if err != nil || n > request.Limit {
			k.Fatalf("Replay = %d, %v, want at most %d", n, err, request.Limit)
		}
		total += n
		if n < request.Limit {
			break
		}
	}
	if total != want {
		k.Fatalf("%d rows were replayed, want %d", total, want)
	}
}

var contextCases = []testCase{
	{"context/ended-is-an-error", "a relay that stops hangs in its store", func(k *kit) {
		k.writeIDs("1")
		l := k.lease()
		ctx, cancel := context.WithCancel(k.Context())
		cancel()
		if _, err := k.Store.Lease(ctx, outbox.LeaseRequest{Token: newToken(), Limit: 1, Lease: long}); err == nil {
			k.Error("Lease returns no error")
		}
		if err := k.Store.Settle(ctx, l.token, nil); err == nil {
			k.Error("Settle returns no error")
		}
		if _, err := k.Store.Clean(ctx, 0, 1); err == nil {
			k.Error("Clean returns no error")
		}
	}},
}

// lane returns the IDs of a lane's rows, in the order in which they were handed out.
func (l leased) orderKey(orderKey string) (ids []string) {
	for _, r := range l.rows {
		if r.OrderKey == orderKey {
			ids = append(ids, r.Message.ID)
		}
	}
	return slices.Clip(ids)
}

// rows are what was shown of message IDs, whatever their topics.
func rows(ids ...string) (all []outbox.RowInfo) {
	for _, id := range ids {
		all = append(all, outbox.RowInfo{ID: id})
	}
	return all
}

// dead returns the dead row of a topic.
func (k *kit) dead(topic string) outbox.RowInfo {
	k.Helper()
	page, err := k.inspector().List(k.Context(), outbox.Filter{States: []outbox.State{outbox.Dead}, Topic: topic}, "")
	if err != nil || len(page.Rows) != 1 {
		k.Fatalf("topic %q has the dead rows %+v, %v, want one", topic, page.Rows, err)
	}
	return page.Rows[0]
}
