package sqlstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

var errRefusal = errors.New("the operation says no")

func keyOf(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id}
}

// counting is an operation that counts attempts, or only looks, and notes what it saw.
func counting(id string, changes bool, saw *[]int, err *error) sqlstore.Operation {
	op := sqlstore.NewOperation(keyOf(id), err)
	op.Apply = func(rec dedupstore.Stored, _ time.Time) (*dedupstore.Stored, error) {
		*saw = append(*saw, rec.Attempts)
		if !changes {
			return nil, errRefusal
		}
		rec.Attempts++
		return &rec, nil
	}
	return op
}

func TestDecide_ChangesOnlyWhatIsLocked(t *testing.T) {
	t.Parallel()
	id := func(id string) string { return sqlstore.IDOf(keyOf(id).String()) }
	unreadable, other := errors.New("cannot be read"), &sqlstore.Row{ID: id("clash"), Key: "another"}
	found := map[string]*sqlstore.Row{
		id("locked"):  {ID: id("locked"), Key: keyOf("locked").String(), Stored: dedupstore.Stored{Attempts: 5}},
		id("free"):    {ID: id("free"), Key: keyOf("free").String(), Stored: dedupstore.Stored{Attempts: 7}},
		id("bad"):     {ID: id("bad"), Key: "whatever it says", Err: unreadable},
		id("clash"):   other,
		id("ignored"): {ID: id("ignored"), Key: keyOf("ignored").String()},
	}
	locked := map[string]bool{id("locked"): true, id("bad"): true, id("clash"): true, id("new"): true}
	var errs [9]error
	var saw [9][]int
	var ops []sqlstore.Operation
	for n, op := range []struct {
		id      string
		changes bool
	}{
		{"locked", true}, {"free", false}, {"free", true}, {"free", false}, {"locked", true}, {"bad", true},
		{"clash", true}, {"new", true}, {"locked", false},
	} {
		errs[n] = errors.New("of a try before")
		ops = append(ops, counting(op.id, op.changes, &saw[n], &errs[n]))
	}
	changed := sqlstore.Decide(ops, found, locked, time.Now())
	for n, want := range []error{
		nil, errRefusal, sqlstore.ErrContended, sqlstore.ErrContended, nil, unreadable, other.Err, nil, errRefusal,
	} {
		if !errors.Is(errs[n], want) {
			t.Errorf("operation %d has %v, want %v", n, errs[n], want)
		}
	}
	if _, is := errors.AsType[*dedupstore.RecordError](errs[6]); !is {
		t.Errorf("a record of another key: %v", errs[6])
	}
	// What comes after a change sees it, and what comes after one that has to wait does not go first.
	for n, want := range [][]int{{5}, {7}, {7}, nil, {6}, nil, nil, {0}, {7}} {
		if !slices.Equal(saw[n], want) {
			t.Errorf("operation %d saw %v, want %v", n, saw[n], want)
		}
	}
	if len(changed) != 2 || changed[0] != found[id("locked")] || changed[0].Attempts != 7 ||
		changed[1].Key != keyOf("new").String() || changed[1].Attempts != 1 {
		t.Errorf("changed are %+v", changed)
	}
	if found[id("free")].Attempts != 7 {
		t.Error("a record that is not locked has changed")
	}
}

func TestChanging_LeavesOutWhatOnlyLooks(t *testing.T) {
	t.Parallel()
	var looks, changes error
	var saw []int
	ops := []sqlstore.Operation{counting("1", false, &saw, &looks), counting("2", true, &saw, &changes)}
	left := sqlstore.Changing(ops, map[string]*sqlstore.Row{}, time.Now())
	if len(left) != 1 || left[0].ID != ops[1].ID || len(saw) != 2 || !errors.Is(looks, errRefusal) {
		t.Errorf("%d of 2 are left; %v", len(left), looks)
	}
	if ops[0].Key != keyOf("1").String() {
		t.Errorf("the operations themselves have changed: %v", ops)
	}
}

func TestTogether_ARefusalIsOfOneOperation(t *testing.T) {
	t.Parallel()
	bad, never := errors.New("one of it is refused"), errors.New("all of it is refused")
	for name, tc := range map[string]struct {
		refused       map[int]error
		calls, failed string
	}{
		"none":            {nil, "01 23 4", ""},
		"one":             {map[int]error{2: bad}, "01 23 2 3 4", "2"},
		"the last":        {map[int]error{4: bad}, "01 23 4", "4"},
		"not worth a try": {map[int]error{0: never}, "01 23 4", "01"},
	} {
		var calls []string
		failed := ""
		text := func(batch []int) (s string) {
			for _, n := range batch {
				s += string(rune('0' + n))
			}
			return s
		}
		do := func(batch []int) error {
			calls = append(calls, text(batch))
			for _, n := range batch {
				if tc.refused[n] != nil {
					return tc.refused[n]
				}
			}
			return nil
		}
		alone := func(err error) bool { return errors.Is(err, bad) }
		sqlstore.Together([]int{0, 1, 2, 3, 4}, 2, do, alone, func(n int, err error) {
			if err == nil {
				t.Errorf("%s: %d failed without an error", name, n)
			}
			failed += text([]int{n})
		})
		if got := strings.Join(calls, " "); got != tc.calls || failed != tc.failed {
			t.Errorf("%s: calls %q, failed %q, want %q and %q", name, got, failed, tc.calls, tc.failed)
		}
	}
}

func TestRunCleaning_LogsAndGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, nil))
		n, began := 0, time.Now()
		err := sqlstore.RunCleaning(ctx, log, "records", time.Minute, func(context.Context) error {
			switch n++; n {
			case 2:
				return errRefusal
			case 4:
				cancel()
				return context.Canceled // which is nothing to tell
			}
			return nil
		})
		if err != nil || n != 4 {
			t.Errorf("%d cleanings, %v, want 4", n, err)
		}
		if took := time.Since(began); took < 2*time.Minute || took > 6*time.Minute {
			t.Errorf("four cleanings took %v", took)
		}
		told := strings.Contains(text.String(), "table=records") && strings.Contains(text.String(), errRefusal.Error())
		if lines := strings.Count(text.String(), "\n"); lines != 1 || !told {
			t.Errorf("%d lines, want the one refusal:\n%s", lines, &text)
		}
	})
}
