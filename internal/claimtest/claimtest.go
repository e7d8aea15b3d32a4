// Package claimtest is for tests of stores that read a record, decide, and write it conditionally: usual claims, and
// tests of many who change one record.
package claimtest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// Key is a usual key.
func Key(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id}
}

// Request is for a claim of a new owner.
func Request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key: Key(id), Owner: ids.Token(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3,
	}
}

// Claim claims, and wants an answer.
func Claim(t testing.TB, s dedupstore.Store, r dedupstore.Request, want dedupstore.Status) dedupstore.Answer {
	t.Helper()
	a, err := dedupstore.ClaimOne(t.Context(), s, r)
	if err != nil || a.Status != want {
		t.Fatalf("claim was answered %s %+v, %v; want %s", a.Status, a, err, want)
	}
	return a
}

// Settle settles a claim.
func Settle(t testing.TB, s dedupstore.Store, c dedupstore.Claim, settlement dedupstore.Settlement) {
	t.Helper()
	if err := dedupstore.SettleOne(t.Context(), s, c, settlement); err != nil {
		t.Fatalf("settle with %T: %v", settlement, err)
	}
}

// Succeeded is a settlement.
func Succeeded(result string) dedupstore.Finish {
	return dedupstore.Finish{
		Retention: time.Hour, Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(result)},
	}
}

// Only skips a case of the conformance suite whose name begins with none of these kinds. A variant of a store need not
// repeat what it shares with the others. With ONCEMILL_PROOF=1 all cases run.
func Only(t testing.TB, kinds ...string) {
	t.Helper()
	if os.Getenv("ONCEMILL_PROOF") != "1" &&
		!slices.ContainsFunc(kinds, func(kind string) bool { return strings.Contains(t.Name(), "/"+kind+"/") }) {
		t.Skip("this variant differs in other cases; ONCEMILL_PROOF=1 runs all")
	}
}

// ManyChanges lets so many change one record at once: each change is done at some time.
func ManyChanges(t *testing.T, s dedupstore.Inspector, many int) {
	t.Helper()
	Settle(t, s, Claim(t, s, Request("1"), dedupstore.AcquiredRun).Claim, Succeeded(""))
	var group sync.WaitGroup
	for range many {
		group.Go(func() {
			d := dedupstore.Duplicates{Key: Key("1"), Count: 1, Last: time.Now(), Retention: time.Minute}
			if err := s.NoteDuplicates(t.Context(), []dedupstore.Duplicates{d}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	seen, err := s.Look(t.Context(), []dedupstore.Key{Key("1")})
	if err != nil || seen[0].Duplicates != many {
		t.Errorf("%d duplicates were noted, %v; want %d", seen[0].Duplicates, err, many)
	}
}

// OneOfManyClaims wants that one of so many claims at once is granted, in each round.
func OneOfManyClaims(t *testing.T, s dedupstore.Store, rounds, claims int) {
	t.Helper()
	for round := range rounds {
		var winners atomic.Int64
		var group sync.WaitGroup
		for range claims {
			group.Go(func() {
				if a, err := dedupstore.ClaimOne(t.Context(), s, Request(fmt.Sprint(round))); err != nil {
					t.Error(err)
				} else if a.Status == dedupstore.AcquiredRun {
					winners.Add(1)
				}
			})
		}
		group.Wait()
		if n := winners.Load(); n != 1 {
			t.Errorf("round %d: %d claims were granted", round, n)
		}
	}
}

// TooLarge settles with a result of so many bytes, which must not fit, and with one that does, just.
func TooLarge(t *testing.T, s dedupstore.Store, most int) {
	t.Helper()
	c := Claim(t, s, Request("1"), dedupstore.AcquiredRun).Claim
	err := dedupstore.SettleOne(t.Context(), s, c, Succeeded(strings.Repeat("x", most)))
	if !errors.Is(err, dedupstore.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	Settle(t, s, c, Succeeded(strings.Repeat("x", most-1000)))
	Claim(t, s, Request("1"), dedupstore.Done)
}

// LongerLease wants that the store promises a lease for longer than it was asked for, but not one that has ended.
func LongerLease(t *testing.T, s dedupstore.Inspector, by time.Duration) {
	t.Helper()
	before := time.Now()
	c := Claim(t, s, Request("1"), dedupstore.AcquiredRun).Claim
	after := time.Now()
	seen, err := s.Look(t.Context(), []dedupstore.Key{Key("1")})
	if err != nil {
		t.Fatal(err)
	}
	least, most := before.Add(c.Lease+by), after.Add(c.Lease+by)
	if until := seen[0].Until; until.Before(least.Truncate(time.Microsecond)) || until.After(most) {
		t.Errorf("the lease ends at %v, want %v to %v", until, least, most)
	}
	Settle(t, s, c, dedupstore.Release{})
	Claim(t, s, Request("1"), dedupstore.AcquiredRun) // is due at once all the same
}

// Pages lists the records of the handler refund. It wants two pages, which look at all records.
func Pages(t *testing.T, s dedupstore.Inspector, size, records, wanted int) {
	t.Helper()
	f := dedupstore.Filter{Tenant: "acme", Group: "billing", Handler: "refund"}
	pages, looked, seen := 0, 0, map[string]bool{}
	for after := ""; pages == 0 || after != ""; pages++ {
		page, err := s.List(t.Context(), f, after)
		if err != nil || page.Looked > size {
			t.Fatalf("page %d looked at %d records, %v", pages, page.Looked, err)
		}
		for _, r := range page.Records {
			seen[r.Key.ID] = true
		}
		looked += page.Looked
		after = page.Next
	}
	if pages != 2 || looked != records || len(seen) != wanted {
		t.Errorf("%d pages looked at %d records and have %d, want 2, %d and %d",
			pages, looked, len(seen), records, wanted)
	}
}
