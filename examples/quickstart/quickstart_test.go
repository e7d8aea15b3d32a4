package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// play runs the quickstart as its flags say, and returns its books.
func play(t *testing.T, args ...string) (map[string]books, bool) {
	t.Helper()
	o, err := parseFlags(append(args, "-out", "json"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	balanced, err := run(t.Context(), o, &stdout, &stderr)
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var all map[string]books
	if err := json.Unmarshal(stdout.Bytes(), &all); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s", err, &stdout)
	}
	if !strings.Contains(stderr.String(), "orders") {
		t.Error("no progress on stderr")
	}
	return all, balanced
}

func TestQuickstart_ShowsTheDifference(t *testing.T) {
	orders, seeds := "40", 1
	if os.Getenv("ONCEMILL_PROOF") != "" {
		orders, seeds = "300", 3
	}
	for seed := range 2 * seeds {
		store := []string{inSQLite, inMemory}[seed%2]
		t.Run(fmt.Sprintf("seed %d in %s", seed, store), func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			all, balanced := play(t, "-orders", orders, "-seed", fmt.Sprint(seed), "-store", store)
			if took := time.Since(start); took > time.Minute {
				t.Errorf("took %v, want at most 60 s", took)
			}
			for name, b := range all {
				if fmt.Sprint(b.Orders) != orders || b.Deliveries <= b.Orders || b.Runs < b.Orders || b.Duplicates == 0 || b.DeadLetters == 0 {
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
	all, balanced := play(t, "-orders", "40", "-crash", "effect")
	g := all[guarded]
	if balanced || g.DoubleCharges == 0 || g.DoubleCharges != g.ExplainedCharges || g.LostOrders != 0 {
		t.Errorf("%+v, want double charges, each explained, and nothing lost", g)
	}
	if shown := table(all, false); !strings.Contains(shown, "limit of tier 1") {
		t.Errorf("the table does not explain it:\n%s", shown)
	}
}

// TestQuickstart_RestartForgetsInMemoryAndNotInSQLite restarts the quickstart on its files when all is done, and lets its
// producers send their copies once more, as they may when their confirmations were lost.
func TestQuickstart_RestartForgetsInMemoryAndNotInSQLite(t *testing.T) {
	for store, remembers := range map[string]bool{inMemory: false, inSQLite: true} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			args := []string{"-orders", "10", "-store", store, "-dir", t.TempDir()}
			if _, balanced := play(t, args...); !balanced {
				t.Fatal("the ledger does not balance before the restart")
			}
			db, err := sqliteoutbox.Open(t.Context(), filepath.Join(args[len(args)-1], "shop.db"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = db.ExecContext(t.Context(), `DELETE FROM injected WHERE stack = 'producer'`)
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			all, balanced := play(t, args...)
			if g := all[guarded]; balanced != remembers || (g.DoubleCharges == 0) != remembers || g.LostOrders != 0 {
				t.Errorf("after a restart: %+v, want double charges: %v", g, !remembers)
			}
		})
	}
}

// The books of a start with other flags said that orders of the first were charged twice.
func TestQuickstart_GoesOnWithTheOrdersOfTheFirstStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, balanced := play(t, "-orders", "12", "-dir", dir); !balanced {
		t.Fatal("the ledger does not balance")
	}
	for _, args := range [][]string{{"-orders", "10"}, {"-orders", "12", "-seed", "2"}} {
		o, err := parseFlags(append(args, "-dir", dir), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t.Context(), o, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "-dir has orders of another -seed") {
			t.Errorf("%v: %v", args, err)
		}
	}
	if all, balanced := play(t, "-orders", "14", "-dir", dir); !balanced || all[guarded].Orders != 14 {
		t.Errorf("%+v, want 14 orders that balance", all[guarded])
	}
}

func TestQuickstart_OnRedis(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	all, balanced := play(t, "-orders", "20", "-redis", redisURL(server))
	if !balanced {
		t.Errorf("%+v", all[guarded])
	}
}

func redisURL(server *testserver.RedisServer) string {
	if given := os.Getenv("ONCEMILL_TEST_REDIS"); given != "" {
		return given
	}
	return "redis://" + server.Addr
}

func TestFlags_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"-orders is 0":           {"-orders", "0"},
		"-orders is 1000000":     {"-orders", "1000000"},
		"-out is \"xml\"":        {"-out", "xml"},
		"-crash is \"all\"":      {"-crash", "all"},
		"-redis names no server": {"-redis", "localhost:6379"},
		"-redis is not a URL":    {"-redis", "redis://%zz"},
		"-store is \"disk\"":     {"-store", "disk"},
		"want one of them":       {"-store", "sqlite", "-redis", "redis://127.0.0.1:6379"},
		"-nats is \"http://127":  {"-nats", "http://127.0.0.1:4222"},
		"unexpected argument":    {"everything"},
		"invalid value \"abc\"":  {"-seed", "abc"},
		"flag provided but not ": {"-fast"},
	} {
		_, err := parseFlags(args, io.Discard)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want it to say %q", args, err, says)
		}
	}
}

func TestPlan_DependsOnTheSeedOnlyAndMeetsEveryFault(t *testing.T) {
	t.Parallel()
	options := func(seed uint64) options { return options{orders: 20, seed: seed, crashEffect: true} }
	a, b, c := plan("run", options(1)), plan("run", options(1)), plan("run", options(2))
	seen := map[fault]bool{}
	same := 0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("order %d differs between two plans of one seed", i)
		}
		if a[i].Amount == c[i].Amount {
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
