package pgstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
)

// listed lists page by page.
func listed(t *testing.T, s *Store, f dedupstore.Filter) (all []dedupstore.Record) {
	t.Helper()
	for next, first := "", true; next != "" || first; first = false {
		page, err := s.List(t.Context(), f, next)
		if err != nil {
			t.Fatal(err)
		}
		all, next = append(all, page.Records...), page.Next
	}
	return all
}

// counted counts part by part.
func counted(t *testing.T, s *Store, f dedupstore.Filter) (records, duplicates, looked int) {
	t.Helper()
	for next, first := "", true; next != "" || first; first = false {
		c, err := s.Count(t.Context(), f, next)
		if err != nil {
			t.Fatal(err)
		}
		for _, tally := range c.Tallies {
			records, duplicates = records+tally.Records, duplicates+tally.Duplicates
		}
		looked, next = looked+c.Looked, c.Next
	}
	return records, duplicates, looked
}

// TestList_TheServerFiltersAsMatchesDoes compares what the server lets through with what Filter.Matches does.
func TestList_TheServerFiltersAsMatchesDoes(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	ids := []string{"1", "a:b", "a", "50%", "_", `\`, "é", "*"}
	groups := []string{"billing", "bill:ing", "%"}
	reasons := []string{"", "card refused", `C:\temp`, "a\x00b", "50% off", "Größe"}
	n := 0
	for _, id := range ids {
		for _, group := range groups {
			r := request(id)
			r.Key.Group = group
			c := claim(t, s, r, dedupstore.AcquiredRun).Claim
			reason := reasons[n%len(reasons)]
			var settlement dedupstore.Settlement = dedupstore.Finish{
				Outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Reason: reason}, Retention: long,
			}
			switch n++; n % 4 {
			case 0:
				continue
			case 1:
				settlement = success
			case 2:
				settlement = dedupstore.Release{Reason: reason, Delay: long}
			}
			if err := dedupstore.SettleOne(t.Context(), s, c, settlement); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := listed(t, s, dedupstore.Filter{})
	if len(all) != n {
		t.Fatalf("%d records are listed of %d", len(all), n)
	}
	var copies []dedupstore.Duplicates
	for _, r := range all {
		copies = append(copies, dedupstore.Duplicates{Key: r.Key, Count: 2, Last: time.Now()})
	}
	if err := s.NoteDuplicates(t.Context(), copies); err != nil {
		t.Fatal(err)
	}
	middle := all[n/2].Claimed
	filters := []dedupstore.Filter{{Tenant: "acme"}, {Tenant: "ac"}, {Handler: "charge"}, {Group: "bill", ID: "1"},
		{Since: middle}, {Since: middle.Add(1)}, {Since: middle.Add(-1)},
		{Before: middle}, {Before: middle.Add(1)}, {Before: middle.Add(-1)}, {Since: middle, Before: middle.Add(1)},
		{States: []dedupstore.State{dedupstore.Running, dedupstore.Finished}, Group: "bill:ing"},
		{Kinds: []dedupstore.Kind{dedupstore.Failed}, Reason: "o"}}
	for _, id := range append(ids, "%", "b") {
		filters = append(filters, dedupstore.Filter{ID: id})
	}
	for _, group := range groups {
		filters = append(filters, dedupstore.Filter{Group: group, Kinds: []dedupstore.Kind{dedupstore.Succeeded}})
	}
	for _, reason := range append(reasons, `\`, "\x00", "%", "e") {
		filters = append(filters, dedupstore.Filter{Reason: reason})
	}
	names := func(records []dedupstore.Record, f dedupstore.Filter) (names []string) {
		for i := range records {
			if f.Matches(&records[i]) {
				names = append(names, records[i].Key.String())
			}
		}
		slices.Sort(names)
		return names
	}
	for _, f := range filters {
		got := listed(t, s, f)
		if got, want := names(got, f), names(all, f); !slices.Equal(got, want) {
			t.Errorf("%+v: the list has %q, want %q", f, got, want)
		}
		if records, duplicates, looked := counted(t, s, f); records != len(got) || duplicates != 2*records ||
			looked != n {
			t.Errorf("%+v: %d records and %d duplicates are counted of %d, want %d of %d", f, records, duplicates,
				looked, len(got), n)
		}
	}
}

// TestCount_InManyParts has more blocks than a part reads, of records and of duplicates.
func TestCount_InManyParts(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, Config{})
	runOf(t, s, "1")
	const n = 30_000
	mustExec(t, pool, fmt.Sprintf(`
INSERT INTO oncemill_dedup (id, fence, first_at, expires_at, clean_at, attempts, returned, state, kind, owner, key,
	print, trace)
SELECT sha256(n::text::bytea), n, now(), now() + (n %% 3 - 1) * interval '1 day', now(), 1, 0, 'done', 'failed', '',
	'acme:billing:charge:' || n, '', '' FROM generate_series(1, %d) AS n`, n))
	mustExec(t, pool, `
INSERT INTO oncemill_dedup_duplicates SELECT id, 2, first_at, now() FROM oncemill_dedup WHERE fence <= 30000`)
	failed := dedupstore.Filter{Kinds: []dedupstore.Kind{dedupstore.Failed}}
	for f, want := range map[*dedupstore.Filter]int{{}: n/3 + 1, &failed: n / 3} { // two thirds have expired
		if records, duplicates, looked := counted(t, s, *f); records != want || duplicates != 2*n/3 || looked != n+1 {
			t.Errorf("%d records and %d duplicates are counted of %d, want %d and %d of %d", records, duplicates,
				looked, want, 2*n/3, n+1)
		}
		if got := len(listed(t, s, *f)); got != want {
			t.Errorf("%d records are listed, want %d", got, want)
		}
	}
}

func TestList_BadPlacesAreRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	_, listErr := s.List(t.Context(), dedupstore.Filter{}, "next")
	_, countErr := s.Count(t.Context(), dedupstore.Filter{}, "next")
	for _, err := range []error{listErr, countErr} {
		if _, ok := errors.AsType[*dedupstore.InvalidError](err); !ok {
			t.Errorf("a place that no page has named returned %v, want an InvalidError", err)
		}
	}
}

func TestList_PagesOfLargeResultsAreShorter(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), Config{})
	const n = 12
	for i := range n {
		c := claimtest.Claim(t, s, claimtest.Request(fmt.Sprint(i)), dedupstore.AcquiredRun).Claim
		claimtest.Settle(t, s, c, claimtest.Succeeded(strings.Repeat("x", pageBytes/8)))
	}
	seen, pages := map[string]bool{}, 0
	for after := ""; pages == 0 || after != ""; pages++ {
		page, err := s.List(t.Context(), dedupstore.Filter{}, after)
		if err != nil || len(page.Records) > 8 {
			t.Fatalf("%d records, %v", len(page.Records), err)
		}
		for _, r := range page.Records {
			seen[r.Key.ID] = true
		}
		after = page.Next
	}
	if len(seen) != n || pages < 2 {
		t.Errorf("%d records in %d pages, want %d in two or more", len(seen), pages, n)
	}
}
