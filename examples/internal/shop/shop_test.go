package shop

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlan_DependsOnTheSeedOnlyAndMeetsEveryLuck(t *testing.T) {
	t.Parallel()
	options := func(seed uint64) Options { return Options{Run: "r", Orders: 10, Seed: seed} }
	a, b, c := plan(options(1)), plan(options(1)), plan(options(2))
	seen := map[luck]bool{}
	same := 0
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("order %d differs between two plans of one seed", i)
		}
		if a[i].Cents == c[i].Cents {
			same++
		}
		seen[a[i].luck] = true
	}
	if same == len(a) || len(seen) != 3 {
		t.Errorf("%d of %d orders are those of another seed, %d kinds of luck", same, len(a), len(seen))
	}
}

func newLedger(t *testing.T) *Ledger {
	t.Helper()
	l, err := openLedger(filepath.Join(t.TempDir(), "ledger"), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.file.Close() })
	return l
}

func TestBooks_EachImbalanceIsFound(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lines        []string
		dead         []string
		double, lost int
	}{
		"charged once":                  {lines: []string{"order a", "charge a x"}},
		"given up":                      {lines: []string{"order a", "run a"}, dead: []string{"a"}},
		"two dead letters":              {lines: []string{"order a"}, dead: []string{"a", "a"}},
		"charged twice":                 {lines: []string{"order a", "charge a x", "charge a x"}, double: 1},
		"charged and given up":          {lines: []string{"order a", "charge a x"}, dead: []string{"a"}, double: 1},
		"neither":                       {lines: []string{"order a", "run a"}, lost: 1},
		"charged, but nobody ordered":   {lines: []string{"charge a x"}},
		"one lost, another one doubled": {lines: []string{"order a", "order b", "charge a x", "charge a x"}, double: 1, lost: 1},
	} {
		l := newLedger(t)
		for _, line := range tc.lines {
			entry, rest, _ := strings.Cut(line, " ")
			if err := l.write(entry, rest); err != nil {
				t.Fatal(err)
			}
		}
		var dead []Order
		for _, id := range tc.dead {
			dead = append(dead, Order{ID: id})
		}
		entries, err := l.read()
		if err != nil {
			t.Fatal(err)
		}
		b := closeBooks(entries, dead)
		balanced := name == "charged once" || name == "given up" || name == "two dead letters"
		if b.DoubleCharges != tc.double || b.Lost != tc.lost || b.Balance() != balanced {
			t.Errorf("%s: %+v, want %d double charges, %d lost, balance %v", name, b, tc.double, tc.lost, balanced)
		}
	}
}

func TestBooks_SayWhatTheyMean(t *testing.T) {
	t.Parallel()
	for says, tc := range map[string]struct {
		books    Books
		complete bool
	}{
		"The books balance":       {Books{Orders: 1, Charges: 1}, true},
		"DO NOT BALANCE":          {Books{Orders: 1, Lost: 1}, true},
		"THE BOOKS DO NOT":        {Books{Orders: 1, Charges: 2, DoubleCharges: 1}, false},
		"Open orders have":        {Books{Orders: 1, Lost: 1}, false},
		"LOST ORDERS           ":  {Books{}, true},
		"open orders           ":  {Books{}, false},
		"  of them retries      ": {Books{}, true},
	} {
		var out bytes.Buffer
		if err := tc.books.print(&out, "table", tc.complete); err != nil || !strings.Contains(out.String(), says) {
			t.Errorf("%+v: %v, want %q in\n%s", tc.books, err, says, &out)
		}
	}
}

func TestLedger_ForeignFileIsRefused(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	if err := l.write("shopping", "list"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.read(); err == nil || !strings.Contains(err.Error(), "shopping list") {
		t.Errorf("%v", err)
	}
}

// Two runs in one ledger were told that orders were lost: the dead letters of the first are gone.
func TestLedger_OfBothRolesIsOfOneRun(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	empty, err := openLedger(l.file.Name(), true)
	if err != nil {
		t.Fatalf("a ledger of a start that found no server is refused: %v", err)
	}
	if err := errors.Join(empty.file.Close(), l.write(entryOrder, "o1")); err != nil {
		t.Fatal(err)
	}
	if _, err := openLedger(l.file.Name(), true); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v, want %v", err, fs.ErrExist)
	}
	more, err := openLedger(l.file.Name(), false)
	if err == nil {
		err = more.file.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestBank_ChargesOnlyWhenItSaysSo(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	options := Options{Run: "r", Orders: 100, Seed: 1}
	bank := newBank(options, l)
	charged, declined, timeouts := 0, 0, 0
	for _, p := range plan(options) {
		for again := true; again; {
			err := bank.Charge(t.Context(), "id", p.Order)
			again = errors.Is(err, ErrTimeout)
			switch {
			case err == nil:
				charged++
			case again:
				timeouts++
			case errors.Is(err, ErrDeclined):
				declined++
			default:
				t.Fatal(err)
			}
		}
	}
	entries, err := l.read()
	if err != nil {
		t.Fatal(err)
	}
	if len(entries[entryCharge]) != charged || len(entries[entryDecline]) != declined || charged+declined != 100 || timeouts == 0 || declined == 0 {
		t.Errorf("%d charged, %d declined, %d timeouts; the ledger has %d charges", charged, declined, timeouts, len(entries[entryCharge]))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := bank.Charge(ctx, "id", Order{ID: "late"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want it to stop", err)
	}
}
