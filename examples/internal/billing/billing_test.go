package billing

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

func TestBooks_EachImbalanceIsFound(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		charged, dead string // orders, separated by spaces
		double, lost  int
	}{
		"charged once":                {charged: "a b"},
		"given up":                    {charged: "a", dead: "b"},
		"two dead letters":            {charged: "a", dead: "b b"},
		"charged twice":               {charged: "a a b", double: 1},
		"charged and given up":        {charged: "a b", dead: "a", double: 1},
		"neither":                     {charged: "b", lost: 1},
		"charged, but nobody ordered": {charged: "a b c"},
		"one lost, another doubled":   {charged: "a a", double: 1, lost: 1},
	} {
		bank := NewBank()
		for _, id := range strings.Fields(tc.charged) {
			bank.charges[id]++
		}
		var dead []shop.Order
		for _, id := range strings.Fields(tc.dead) {
			dead = append(dead, shop.Order{ID: id})
		}
		b := closeBooks([]shop.Order{{ID: "a"}, {ID: "b"}}, bank, dead)
		balanced := name == "charged once" || name == "given up" || name == "two dead letters"
		var out bytes.Buffer
		err := b.print(&out)
		if err != nil || b.DoubleCharges != tc.double || b.Lost != tc.lost || b.Balance() != balanced || b.Copies != 1 {
			t.Errorf("%s: %+v, %v; want %d double charges, %d lost, balance %v", name, b, err, tc.double, tc.lost,
				balanced)
		}
		if strings.Contains(out.String(), "The books balance") != balanced ||
			strings.Contains(out.String(), "DO NOT BALANCE") == balanced {
			t.Errorf("%s:\n%s", name, &out)
		}
	}
}

func TestBank_ChargesOnlyWhenItSaysSo(t *testing.T) {
	t.Parallel()
	bank := NewBank()
	charged, declined, timeouts := 0, 0, 0
	for _, p := range plan(Options{Run: "r", Orders: 100}) {
		for again := true; again; {
			err := bank.Charge(t.Context(), "id", p)
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
	if len(bank.charges) != charged || charged+declined != 100 || timeouts == 0 || declined == 0 {
		t.Errorf("%d charged, %d declined, %d timeouts; the bank has charged %d", charged, declined, timeouts,
			len(bank.charges))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := bank.Charge(ctx, "id", shop.Order{ID: "late"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want it to stop", err)
	}
}
