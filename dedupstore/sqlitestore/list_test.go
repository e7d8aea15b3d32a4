package sqlitestore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// insertSQL makes many finished records. Every hundredth has failed.
const insertSQL = `
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO oncemill_dedup (key, state, owner, fence, attempts, returned, started, lease_until, due_at, first_at,
	expires_at, scheme, sum, settled, trace, decided, kind, exhausted, truncated, reason, result)
SELECT 'acme:billing:charge:' || i, 'done', '', ?2 + i, 1, 0, 0, 0, 0, ?2, ?2 + 3600000000, '', '', '', '', ?2 + i,
	iif(i % 100 = 0, 'failed', 'succeeded'), 0, 0, CAST(iif(i % 100 = 0, 'card refused', '') AS BLOB), zeroblob(?3)
FROM n`

// listed returns the records that a filter lets through, how many pages had them, and how many these looked at.
func listed(
	t testing.TB, s dedupstore.Inspector, f dedupstore.Filter,
) (records []dedupstore.Record, pages, looked int) {
	t.Helper()
	for after := ""; ; {
		page, err := s.List(t.Context(), f, after)
		if err != nil {
			t.Fatal(err)
		}
		records, pages, looked = append(records, page.Records...), pages+1, looked+page.Looked
		if after = page.Next; after == "" {
			return records, pages, looked
		}
	}
}

// counted returns how many records and duplicates a filter lets through.
func counted(t testing.TB, s dedupstore.Inspector, f dedupstore.Filter) (records, duplicates int) {
	t.Helper()
	for after := ""; ; {
		c, err := s.Count(t.Context(), f, after)
		if err != nil {
			t.Fatal(err)
		}
		for _, tally := range c.Tallies {
			records, duplicates = records+tally.Records, duplicates+tally.Duplicates
		}
		if after = c.Next; after == "" {
			return records, duplicates
		}
	}
}

// TestList_SQLSaysWhatMatchesSays tries random filters on random records.
func TestList_SQLSaysWhatMatchesSays(t *testing.T) {
	t.Parallel()
	s, db := newStore(t, "_synchronous", "OFF")
	one := func(of ...string) string { return of[rand.N(len(of))] }
	parts := []string{"a", "A", "a:b", "a*", "*", "?", "[a]", "%", "é"}
	for range 100 {
		key := dedupstore.Key{Tenant: one(parts...), Group: one(parts...), Handler: one(parts...), ID: one(parts...)}
		r := request("")
		r.Key = key
		a, err := dedupstore.ClaimOne(t.Context(), s, r)
		if err != nil {
			t.Fatal(err)
		}
		if a.Status != dedupstore.AcquiredRun {
			continue
		}
		o := dedupstore.Outcome{
			Kind: dedupstore.Kind(one("failed", "unknown", "succeeded")), Reason: one("", "ab", "AB", "é", "*"),
		}
		switch rand.N(4) {
		case 0:
			err = dedupstore.SettleOne(t.Context(), s, a.Claim, dedupstore.Release{Reason: o.Reason})
		case 1:
			o.Produced = []dedupstore.Produced{{ID: "1", Topic: "t"}}
			fallthrough
		case 2:
			err = dedupstore.SettleOne(t.Context(), s, a.Claim, dedupstore.Finish{Outcome: o, Retention: time.Hour})
		}
		if err != nil {
			t.Fatal(err)
		}
		d := []dedupstore.Duplicates{{Key: key, Count: 1 + rand.N(3), Last: time.Now(), Retention: time.Hour}}
		if err := s.NoteDuplicates(t.Context(), d[:rand.N(2)]); err != nil {
			t.Fatal(err)
		}
	}
	mustExec(t, db, `UPDATE oncemill_dedup SET expires_at = 1 WHERE number % 10 = 0`)
	all, _, looked := listed(t, s, dedupstore.Filter{})
	if n := count(t, db, `SELECT count(*) FROM oncemill_dedup`); looked != n || len(all) != n-n/10 {
		t.Fatalf("looked at %d records and listed %d, want %d and %d", looked, len(all), n, n-n/10)
	}
	for range 200 {
		f := dedupstore.Filter{Reason: one("", "", "a", "b", "ab", "AB", "é", "*")}
		for _, part := range []*string{&f.Tenant, &f.Group, &f.Handler, &f.ID} {
			*part = one(append(parts, "", "", "", "", "", "", "", "", "")...)
		}
		for range rand.N(3) {
			f.States = append(f.States, dedupstore.State(one("running", "retryable", "publishing", "done", "absent")))
		}
		for range rand.N(3) {
			f.Kinds = append(f.Kinds, dedupstore.Kind(one("", "failed", "unknown", "succeeded")))
		}
		for _, at := range []*time.Time{&f.Since, &f.Before} {
			if rand.N(2) == 0 {
				*at = all[rand.N(len(all))].Claimed.Add(time.Duration(rand.N(3)-1) * time.Nanosecond)
			}
		}
		wantRecords, wantDuplicates := 0, 0
		for i := range all {
			if f.Matches(&all[i]) {
				wantRecords, wantDuplicates = wantRecords+1, wantDuplicates+all[i].Duplicates
			}
		}
		records, duplicates := counted(t, s, f)
		if records != wantRecords || duplicates != wantDuplicates {
			t.Errorf("%+v: counted %d records and %d duplicates, want %d and %d", f, records, duplicates, wantRecords,
				wantDuplicates)
		}
		if got, _, _ := listed(t, s, f); len(got) != wantRecords {
			t.Errorf("%+v: listed %d records, want %d", f, len(got), wantRecords)
		}
	}
}

func TestList_PagesOfLargeResultsAreShorter(t *testing.T) {
	t.Parallel()
	s, db := newStore(t, "_synchronous", "OFF")
	db.SetMaxOpenConns(1) // a page must not ask for another one
	const n = 100
	mustExec(t, db, insertSQL, n, clock().UnixMicro(), pageBytes/40)
	mustExec(t, db, `DELETE FROM oncemill_dedup WHERE number % 3 = 0`)
	records, pages, looked := listed(t, s, dedupstore.Filter{})
	if len(records) != n-n/3 || pages != 2 || looked != n-n/3 {
		t.Errorf("%d records in %d pages that looked at %d, want %d in 2", len(records), pages, looked, n-n/3)
	}
	records, pages, looked = listed(t, s, dedupstore.Filter{Kinds: []dedupstore.Kind{dedupstore.Failed}})
	if len(records) != 1 || pages != 1 || looked != n-n/3 {
		t.Errorf("%d failures in %d pages that looked at %d, want 1 in 1", len(records), pages, looked)
	}
}

func TestList_WaitsForNoHandler(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	mustExec(t, db, insertSQL, 2*pageRows, clock().UnixMicro(), 0)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if records, pages, _ := listed(t, s, dedupstore.Filter{}); len(records) != 2*pageRows || pages != 3 {
		t.Errorf("listed %d records in %d pages", len(records), pages)
	}
	if records, _ := counted(t, s, dedupstore.Filter{}); records != 2*pageRows {
		t.Errorf("counted %d records", records)
	}
	page, err := s.List(t.Context(), dedupstore.Filter{}, "")
	if err != nil || page.Looked != pageRows || page.Total != 2*pageRows {
		t.Errorf("a page has looked at %d of %d, %v", page.Looked, page.Total, err)
	}
}

func TestList_SaysWhatItCannotRead(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	var invalid *dedupstore.InvalidError
	if _, err := s.List(t.Context(), dedupstore.Filter{}, "x"); !errors.As(err, &invalid) {
		t.Errorf("a page after %q returned %v, want an InvalidError", "x", err)
	}
	for _, change := range []string{`state = 'lost'`, `key = 'acme:billing'`} {
		t.Run(change, func(t *testing.T) {
			claim(t, s, request(fmt.Sprint(rand.Int())), dedupstore.AcquiredRun)
			mustExec(t, db, `UPDATE oncemill_dedup SET `+change)
			claim(t, s, request("good"), dedupstore.AcquiredRun)
			page, err := s.List(t.Context(), dedupstore.Filter{}, "")
			if bad, ok := dedupstore.Unreadable(err); !ok || len(bad) != 1 || len(page.Records) != 1 {
				t.Errorf("List returned %d records and %v, want one, and a RecordError", len(page.Records), err)
			}
			mustExec(t, db, `DELETE FROM oncemill_dedup`)
		})
	}
}

func BenchmarkInspector(b *testing.B) {
	s, db := newStore(b, "_synchronous", "OFF")
	const n = 100_000
	mustExec(b, db, insertSQL, n, clock().UnixMicro(), 0)
	failures := dedupstore.Filter{Kinds: []dedupstore.Kind{dedupstore.Failed}}
	bench := func(name string, want int, look func() int) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if got := look(); got != want {
					b.Fatalf("%d records, want %d", got, want)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
		})
	}
	bench("count", n, func() int {
		records, _ := counted(b, s, dedupstore.Filter{})
		return records
	})
	bench("list-failures", n/100, func() int {
		records, _, _ := listed(b, s, failures)
		return len(records)
	})
	bench("list-all", n, func() int {
		records, _, _ := listed(b, s, dedupstore.Filter{})
		return len(records)
	})
}
