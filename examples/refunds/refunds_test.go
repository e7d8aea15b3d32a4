package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

func TestMain(m *testing.M) {
	if order, is := os.LookupEnv(childEnv); is {
		fmt.Fprintln(os.Stderr, die(context.Background(), order))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestRefunds_EachOrderIsPaidBackOnce(t *testing.T) {
	t.Parallel()
	tickets := 9
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		tickets = 999
	}
	b, err := work(t.Context(), t.TempDir(), tickets, "")
	if err != nil || !b.balance() {
		t.Errorf("%+v, %v; want balanced books", b, err)
	}
	if b.Tickets != tickets || b.Deaths != tickets/3 || b.Recognised != b.Deaths {
		t.Errorf("%+v; want everything to have happened, and the bank to recognise the payment of each that died", b)
	}
}

func TestRefunds_MistakesShowInTheBooks(t *testing.T) {
	t.Parallel()
	for _, mistake := range []string{"no guard", "reason in key", "key of run"} {
		t.Run(mistake, func(t *testing.T) {
			t.Parallel()
			b, err := work(t.Context(), t.TempDir(), 3, mistake)
			if err != nil || b.balance() || b.Payments <= b.Orders || b.Orders != b.Tickets {
				t.Errorf("%+v, %v; want payments beyond one for each order", b, err)
			}
		})
	}
}

func TestRefunds_EachCallerGetsTheSameReceipt(t *testing.T) {
	t.Parallel()
	tool, err := openTool(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer tool.db.Close()
	var receipts [3]int
	err = shop.Each(t.Context(), 2, 2, func(ctx context.Context, i int) (err error) { // at the same time
		receipts[i], err = tool.refund(ctx, request{7, fmt.Sprint("Broken, says agent ", i)})
		return err
	})
	last, err2 := tool.refund(t.Context(), request{7, "Broken on arrival."})
	if receipts[2] = last; err != nil || err2 != nil || last == 0 || receipts != [3]int{last, last, last} {
		t.Errorf("receipts %v, %v, %v; want one number", receipts, err, err2)
	}
}
