package redisstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// everyPage returns all that a list has, by name, and how many records it has looked at.
func everyPage(t *testing.T, s *Store, f dedupstore.Filter) (records map[string]dedupstore.Record, looked int) {
	t.Helper()
	records = map[string]dedupstore.Record{}
	for after := ""; ; {
		page := must(s.List(t.Context(), f, after))(t)
		for _, r := range page.Records {
			records[s.name(r.Key)] = r
		}
		looked += page.Looked
		if after = page.Next; after == "" {
			return records, looked
		}
	}
}

// everyTally adds up what Count counts.
func everyTally(t *testing.T, s *Store, f dedupstore.Filter) map[dedupstore.Tally]dedupstore.Tally {
	t.Helper()
	sums := map[dedupstore.Tally]dedupstore.Tally{}
	for after := ""; ; {
		c := must(s.Count(t.Context(), f, after))(t)
		for _, tally := range c.Tallies {
			of := tally
			of.Records, of.Duplicates = 0, 0
			sum := sums[of]
			sum.Records += tally.Records
			sum.Duplicates += tally.Duplicates
			sums[of] = sum
		}
		if after = c.Next; after == "" {
			return sums
		}
	}
}

// fill puts finished records in a server. One in a thousand has failed.
func fill(t *testing.T, s *Store, rdb *redis.Client, records int) {
	t.Helper()
	const script = `for i = ARGV[1], ARGV[2] - 1 do
		local failed = i % 1000 == 7
		local v = '1D' .. (failed and 'f' or 's')
			.. '1700000714983247abcdefghf' .. string.rep('x', 20) .. 't' .. string.rep('y', 25)
			.. 'w16billing-7d9f-x2x9k:417k00000250' .. (failed and 'M0000000ccard refused' or '')
		redis.call('PSETEX', KEYS[1] .. string.format('%d-0000-4000-8000', i), 3600000, v)
	end`
	for from := 0; from < records; from += 10_000 {
		err := rdb.Eval(t.Context(), script,
			[]string{s.name(dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge"})},
			from, from+10_000).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
}

func TestList_OfManyHoldsTheServerForMomentsOnly(t *testing.T) {
	t.Parallel()
	records, moment := 100_000, 50*time.Millisecond // other tests are at work, too; a look at all takes 100 ms
	if proof {
		records, moment = 3_000_000, 5*time.Millisecond
	}
	rdb := redistest.Start(t, "--appendonly", "no", "--save", "", "--slowlog-max-len", "10000").Client()
	s := newStore(t, rdb)
	fill(t, s, rdb, records)
	const id = "1234-0000-4000-8000"
	rare := request(id)
	rare.Key.Group = "rare"
	claim(t, s, rare, dedupstore.AcquiredRun)
	err := rdb.ConfigSet(t.Context(), "slowlog-log-slower-than", fmt.Sprint(moment.Microseconds())).Err()
	if err != nil {
		t.Fatal(err)
	}
	finished := dedupstore.Tally{Tenant: "acme", Group: "billing", Handler: "charge", State: dedupstore.Finished}
	for name, list := range map[string]func() (got, want int){
		"one ID": func() (int, int) {
			f := dedupstore.Filter{ID: id}
			first := must(s.List(t.Context(), f, ""))(t).Records
			if !slices.ContainsFunc(first, func(r dedupstore.Record) bool { return r.Key.Group == "billing" }) {
				t.Errorf("the first page has %+v, want that of the scope that most are in", first)
			}
			found, looked := everyPage(t, s, f)
			if looked < records*9/10 || looked > records*11/10 {
				t.Errorf("a list looked at %d records, want about %d", looked, records)
			}
			return len(found), 2
		},
		"failures": func() (int, int) {
			found, _ := everyPage(t, s, dedupstore.Filter{Kinds: []dedupstore.Kind{dedupstore.Failed}})
			return len(found), records / 1000
		},
		"a reason": func() (int, int) {
			found, _ := everyPage(t, s, dedupstore.Filter{Reason: "refused"})
			return len(found), records / 1000
		},
		"count": func() (int, int) {
			all := everyTally(t, s, dedupstore.Filter{})
			of := finished
			of.Kind = dedupstore.Failed
			if all[of].Records != records/1000 {
				t.Errorf("%d failures are counted, want %d", all[of].Records, records/1000)
			}
			of.Kind = dedupstore.Succeeded
			return all[of].Records, records - records/1000
		},
	} {
		if err := rdb.SlowLogReset(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		got, want := list()
		took := time.Since(start)
		if got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
		// A machine that is busy makes any call slow: one that looks at too much is slow each time.
		slow := must(rdb.SlowLogGet(t.Context(), -1).Result())(t)
		var longest time.Duration
		for _, l := range slow {
			longest = max(longest, l.Duration)
		}
		if calls := records / scanCount; len(slow) >= calls {
			t.Errorf("%s: %d of %d calls took more than %v", name, len(slow), calls, moment)
		}
		t.Logf("%s: %v; %d calls over %v, the longest %v", name, took, len(slow), moment, longest)
	}
}

// Whatever else has a name under the prefix, or none, is no record; and what the prefix is made of means itself.
func TestList_OfAPrefixWithOtherKeysUnderIt(t *testing.T) {
	t.Parallel()
	rdb := ownServer(t).Client()
	const prefix = `a*[b]?\d^-`
	s := must(New(rdb, Config{Prefix: prefix}))(t)
	other := must(New(rdb, Config{Prefix: `axx[b]y\d^-`}))(t)
	near := must(New(rdb, Config{Prefix: `a*b?\d^-`}))(t)
	ids := []string{"1", "12", "*", "1?", "[1]", `\1`, "é", "a:b"}
	for _, id := range ids {
		claim(t, s, request(id), dedupstore.AcquiredRun)
		claim(t, other, request(id), dedupstore.AcquiredRun)
		claim(t, near, request(id), dedupstore.AcquiredRun)
		err := s.NoteDuplicates(t.Context(),
			[]dedupstore.Duplicates{{Key: key(id), Count: 2, Last: time.Now(), Retention: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"", "acme:billing:charge", "acme:billing:charge:1:2", "acme:billing:charge:é", "x", "?",
		"acme:billing:charge:gone?",
	} {
		if err := rdb.HSet(t.Context(), prefix+":"+name, "count", 7).Err(); err != nil {
			t.Fatal(err)
		}
	}
	running := dedupstore.Tally{Tenant: "acme", Group: "billing", Handler: "charge", State: dedupstore.Running}
	want := dedupstore.Tally{Records: len(ids), Duplicates: 2 * len(ids)}
	for name, f := range map[string]dedupstore.Filter{
		"all": {}, "by handler": {Handler: "charge"}, "by state": {States: []dedupstore.State{dedupstore.Running}},
	} {
		if found, _ := everyPage(t, s, f); len(found) != len(ids) {
			t.Errorf("%s: %d records, want %d", name, len(found), len(ids))
		}
		if got := everyTally(t, s, f); len(got) != 1 || got[running] != want {
			t.Errorf("%s: counted %+v, want %+v", name, got, want)
		}
	}
	for _, id := range ids {
		f := dedupstore.Filter{ID: id}
		found, _ := everyPage(t, s, f)
		if r := found[s.name(key(id))]; len(found) != 1 || r.Key != key(id) || r.Duplicates != 2 {
			t.Errorf("%q: the list has %+v", id, found)
		}
		if got := everyTally(t, s, f); len(got) != 1 || got[running] != (dedupstore.Tally{Records: 1, Duplicates: 2}) {
			t.Errorf("%q: counted %+v", id, got)
		}
	}
}

// The server lets names through that have a part elsewhere.
func TestList_PartsAreTheirOwn(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	for _, k := range []dedupstore.Key{
		{Tenant: "a", Group: "b", Handler: "c", ID: "d"}, {Tenant: "b", Group: "c", Handler: "d", ID: "a"},
		{Tenant: "c", Group: "d", Handler: "a", ID: "b"}, {Tenant: "d", Group: "a", Handler: "b", ID: "c"},
	} {
		r := request(k.ID)
		r.Key = k
		claim(t, s, r, dedupstore.AcquiredRun)
	}
	for _, f := range []dedupstore.Filter{
		{Tenant: "a"}, {Group: "a"}, {Handler: "a"}, {ID: "a"}, {Tenant: "a", Handler: "c"}, {Group: "a", ID: "c"},
	} {
		if found, _ := everyPage(t, s, f); len(found) != 1 {
			t.Errorf("%+v: the list has %v, want one", f, found)
		}
		if got := everyTally(t, s, f); len(got) != 1 {
			t.Errorf("%+v: counted %v, want one", f, got)
		}
	}
}

// One damaged record must not hide the others.
func TestList_NamesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	claim(t, s, request("good"), dedupstore.AcquiredRun)
	put(t, s, rdb, key("later"), "2R")
	if err := rdb.HSet(t.Context(), s.name(key("hash")), "v", "1").Err(); err != nil {
		t.Fatal(err)
	}
	rdb.Expire(t.Context(), s.name(key("hash")), time.Hour)
	for name, f := range map[string]dedupstore.Filter{
		"all": {}, "by state": {States: []dedupstore.State{dedupstore.Running}}, "by reason": {Reason: "x"},
	} {
		good, unreadable := 0, map[string]bool{}
		for after := ""; ; {
			page, err := s.List(t.Context(), f, after)
			bad, ok := dedupstore.Unreadable(err)
			if !ok {
				t.Fatalf("%s: %v", name, err)
			}
			for _, of := range bad {
				unreadable[of.Key] = true
			}
			good += len(page.Records)
			if after = page.Next; after == "" {
				break
			}
		}
		if want := map[bool]int{true: 0, false: 1}[name == "by reason"]; good != want || len(unreadable) != 2 {
			t.Errorf("%s: %d records, want %d; unreadable are %v", name, good, want, unreadable)
		}
	}
	unreadable := 0
	for after := ""; ; {
		c, err := s.Count(t.Context(), dedupstore.Filter{}, after)
		bad, _ := dedupstore.Unreadable(err)
		unreadable += len(bad)
		if after = c.Next; after == "" {
			break
		}
	}
	if unreadable != 2 {
		t.Errorf("%d records could not be counted, want 2", unreadable)
	}
}

func TestList_OnAClusterVisitsEachMaster(t *testing.T) {
	t.Parallel()
	s := newStore(t, redistest.StartCluster(t).Client())
	const n = 300
	var noted []dedupstore.Duplicates
	for i := range n {
		k := key(fmt.Sprint(i))
		settle(t, s, claim(t, s, request(k.ID), dedupstore.AcquiredRun).Claim, failed())
		noted = append(noted, dedupstore.Duplicates{Key: k, Count: 2, Last: time.Now(), Retention: time.Hour})
	}
	if err := s.NoteDuplicates(t.Context(), noted); err != nil {
		t.Fatal(err)
	}
	f := dedupstore.Filter{Kinds: []dedupstore.Kind{dedupstore.Failed}}
	found, looked := everyPage(t, s, f)
	if len(found) != n || looked != 2*n { // with what is beside them
		t.Errorf("%d records of %d, want %d", len(found), looked, n)
	}
	for of, got := range everyTally(t, s, f) {
		if got.Records != n || got.Duplicates != 2*n {
			t.Errorf("%+v: %+v are counted, want %d", of, got, n)
		}
	}
	first := must(s.List(t.Context(), f, ""))(t)
	if first.Total != 2*n || first.Next == "" {
		t.Errorf("the first page is of %d, want %d, and of the first of three masters", first.Total, 2*n)
	}
	for _, r := range found {
		if err := s.Change(t.Context(), r, dedupstore.Forget{}); err != nil {
			t.Fatal(err)
		}
	}
	if left := must(s.rdb.DBSize(t.Context()).Result())(t); left != 0 {
		t.Errorf("%d keys are left of those that were forgotten", left)
	}
	at := must(parsePlace(first.Next))(t)
	at.layout++
	if _, err := s.List(t.Context(), f, at.String()); err == nil {
		t.Error("a list goes on although the masters are others")
	}
}

func TestList_FromNoPageIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := onServer(t)
	for _, after := range []string{"x", "1", "1.2.3", "-1.0.0.0", "0.0.-1.0", "1.0.0.0x"} {
		var invalid *dedupstore.InvalidError
		if _, err := s.List(t.Context(), dedupstore.Filter{}, after); !errors.As(err, &invalid) {
			t.Errorf("after %q: %v, want an InvalidError", after, err)
		}
	}
	if _, err := s.List(t.Context(), dedupstore.Filter{}, "0.0.1.0"); err == nil {
		t.Error("a list goes on at a second server")
	}
}
