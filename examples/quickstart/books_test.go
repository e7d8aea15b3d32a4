package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

func TestBooks_EachOrderIsChargedOnceOrDeadLettered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		charges, wrong int
		dead           bool
		want           books
		ok             bool
	}{
		"charged once":             {1, 0, false, books{}, true},
		"dead-lettered":            {0, 0, true, books{}, true},
		"a copy was dead-lettered": {1, 0, true, books{}, true},
		"lost":                     {0, 0, false, books{LostOrders: 1}, false},
		"charged twice":            {2, 0, false, books{DoubleCharges: 1}, false},
		"another amount":           {1, 1, false, books{WrongAmounts: 1}, false},
		"two halves":               {2, 2, false, books{DoubleCharges: 1, WrongAmounts: 2}, false},
	} {
		var b books
		b.add("a", ending{Charges: tc.charges, Wrong: tc.wrong, Dead: tc.dead}, true)
		if got, want := b.verdict(), tc.want.verdict(); got != want || b.balance() != tc.ok ||
			b.endings["a"].Bad() == tc.ok {
			t.Errorf("%s: %s (balances: %v, %s), want %s (%v)", name, got, b.balance(), b.endings["a"], want, tc.ok)
		}
		if b.add("b", ending{}, false); b.LostOrders != tc.want.LostOrders {
			t.Errorf("%s: what is under way is lost", name)
		}
	}
}

func TestTable_ShowsEachStack(t *testing.T) {
	t.Parallel()
	shown := report{guarded: {Orders: 11, Mismatches: 12}, unguarded: {Orders: 21, DoubleCharges: 22},
		deduplicator: {LostOrders: 33}}.table()
	for _, line := range []string{
		"  orders                                     11          21              0\n",
		"  mismatches (same ID, other amount)         12           -              -\n",
		"  DOUBLE CHARGES                              0          22              0\n",
		"  LOST ORDERS                                 0           0             33\n",
	} {
		if !strings.Contains(shown, line) {
			t.Errorf("%q is not in\n%s", line, shown)
		}
	}
}

// The command, what it says meanwhile, the table and the next prompt fit a screen of 80 by 24.
func TestQuickstart_FitsOneScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	all, err := play(t.Context(), options{orders: 20, seed: 1, dir: t.TempDir(), temporary: true}, &out, &out)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range all { // as of a large run
		b.Orders, b.Deliveries, b.DeadLetters = 100_000, 120_000, 1_000
		all[name] = b
	}
	if lines := strings.Count(out.String(), "\n"); lines > 22 {
		t.Errorf("%d lines:\n%s", lines, &out)
	}
	for line := range strings.Lines(out.String() + all.table()) {
		if len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
}

func TestStack_ThatCannotBeStartedEndsWhatItBegan(t *testing.T) {
	t.Parallel()
	o := options{dir: t.TempDir(), orders: 10}
	s, err := openStore(t.Context(), o.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.db.Close()
	b, err := openBroker(t.Context(), s.names, o, oncemill.Telemetry{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	records, err := shop.OpenSQLite(t.Context(), filepath.Join(o.dir, "dedup.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	away, unknown := *b, *b
	away.url, unknown.names = "nats://127.0.0.1:1", names{run: "unknown"}
	for what, broker := range map[string]*broker{"no connection": &away, "no stream": &unknown} {
		for _, name := range []string{guarded, unguarded} {
			st := &stack{name: name, shop: s, broker: broker, records: &mortality{Inspector: records.Leased, shop: s}}
			ended := make(chan error, 1)
			go func() {
				_, err := st.start(t.Context())
				ended <- err
			}()
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("%s, %s: it started", what, name)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("%s, %s: start hangs", what, name)
			}
		}
	}
}

func TestFlags_CredentialsAreNotShown(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"http://user:s3cret@127.0.0.1:1", "s3cret@127.0.0.1:1", "nats://user:s3cret/x@127.0.0.1:1",
		"nats://user:s3cret@h:%zz", "s3cret:x", "nats://user:s3cret@127.0.0.1:1", "nats://s3cret@127.0.0.1:1",
	} {
		var stdout, stderr bytes.Buffer
		status := program(t.Context(), []string{"-nats", url}, &stdout, &stderr)
		if status != 1 || !strings.Contains(stderr.String(), "cannot be used") ||
			strings.Contains(stderr.String(), "s3cret") {
			t.Errorf("%s: %d, %s; want an error without credentials", url, status, &stderr)
		}
	}
}
