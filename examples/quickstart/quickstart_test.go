package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// playTest plays the quickstart, and returns its books.
func playTest(t *testing.T, o options) (report, bool) {
	t.Helper()
	var out bytes.Buffer
	if o.dir == "" {
		o.dir, o.temporary = t.TempDir(), true
	}
	all, err := play(t.Context(), o, io.Discard, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if !strings.Contains(out.String(), "orders") {
		t.Error("no progress")
	}
	return all, all[guarded].balance()
}

func TestQuickstart_ShowsTheDifference(t *testing.T) {
	orders, seeds := 40, 2
	if os.Getenv("ONCEMILL_PROOF") != "" {
		orders, seeds = 300, 6
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			all, balanced := playTest(t, options{orders: orders, seed: uint64(seed)})
			if took := time.Since(start); took > time.Minute {
				t.Errorf("took %v, want at most 60 s", took)
			}
			for name, b := range all {
				if b.Orders != orders || b.Deliveries <= b.Orders || b.Runs < b.Orders || b.Duplicates == 0 ||
					b.DeadLetters == 0 {
					t.Errorf("%s: %+v", name, b)
				}
			}
			g := all[guarded]
			if !balanced || g.DoubleCharges != 0 || g.LostOrders != 0 {
				t.Errorf("oncemill: %+v, want the ledger to balance", g)
			}
			if g.DuplicatesDone == 0 || g.PublishedByCopies == 0 || g.FailuresReplayed == 0 || g.Mismatches == 0 {
				t.Errorf("oncemill: %+v, want every fault to have bitten", g)
			}
			if all[unguarded].DoubleCharges == 0 {
				t.Errorf("unguarded: %+v, want double charges", all[unguarded])
			}
			if all[deduplicator].LostOrders == 0 {
				t.Errorf("Watermill's Deduplicator: %+v, want lost orders", all[deduplicator])
			}
		})
	}
}

func TestQuickstart_CrashBetweenEffectAndOutcomeIsTheLimitAndExplained(t *testing.T) {
	t.Parallel()
	all, balanced := playTest(t, options{orders: 40, seed: 1, crash: "effect"})
	g := all[guarded]
	if balanced || g.DoubleCharges == 0 || g.DoubleCharges != len(g.Explained) || g.LostOrders != 0 {
		t.Errorf("%+v, want double charges, each explained, and nothing lost", g)
	}
	if shown := all.table(); !strings.Contains(shown, "limit of tier 1") {
		t.Errorf("the table does not explain it:\n%s", shown)
	}
}

// TestQuickstart_RestartForgetsNothing restarts the quickstart on its files when all is done, with more orders. Its
// producers send their copies once more, as they may after they lost their confirmations.
func TestQuickstart_RestartForgetsNothing(t *testing.T) {
	t.Parallel()
	o := options{orders: 10, seed: 1, dir: filepath.Join(t.TempDir(), "not", "there", "yet")}
	if _, balanced := playTest(t, o); !balanced {
		t.Fatal("the ledger does not balance before the restart")
	}
	s, err := openStore(t.Context(), o.dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.db.ExecContext(t.Context(), `DELETE FROM log WHERE stack = 'producer'`)
	if err := errors.Join(err, s.db.Close()); err != nil {
		t.Fatal(err)
	}
	o.orders = 14
	all, balanced := playTest(t, o)
	if g := all[guarded]; !balanced || g.Orders != 14 || g.DuplicatesDone == 0 || all[unguarded].DoubleCharges == 0 {
		t.Errorf("after a restart: %+v, want 14 orders that balance, and duplicates", g)
	}
}

func TestFlags_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"-orders is 0":           {"-orders", "0"},
		"-orders is 1000000":     {"-orders", "1000000"},
		"-crash is \"all\"":      {"-crash", "all"},
		"unexpected argument":    {"everything"},
		"invalid value \"abc\"":  {"-orders", "abc"},
		"flag provided but not ": {"-fast"},
	} {
		var stdout, stderr bytes.Buffer
		status := program(t.Context(), args, &stdout, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), says) {
			t.Errorf("%v: %d, %s; want it to say %q", args, status, &stderr, says)
		}
	}
}

func TestPlan_DependsOnTheSeedOnlyAndMeetsEveryFault(t *testing.T) {
	t.Parallel()
	options := func(seed uint64) options { return options{orders: 20, seed: seed, crash: "effect"} }
	a, b, c := plan("run", options(1)), plan("run", options(1)), plan("run", options(2))
	seen := map[fault]bool{}
	same := 0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("order %d differs between two plans of one seed", i)
		}
		if a[i].Cents == c[i].Cents {
			same++
		}
		seen[a[i].fault] = true
	}
	if same == len(a) {
		t.Error("two seeds made one plan")
	}
	if len(seen) < 8 {
		t.Errorf("only %d faults in 20 orders: %v", len(seen), seen)
	}
}
