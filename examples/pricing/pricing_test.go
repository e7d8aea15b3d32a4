package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if url, is := os.LookupEnv(childEnv); is {
		fmt.Fprintln(os.Stderr, child(context.Background(), url))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestPricing_EachOrderHasThePricesOfOneRun(t *testing.T) {
	t.Parallel()
	b, err := play(t.Context(), t.TempDir(), 30, "")
	if err != nil || !b.balance() || b.Deaths == 0 || b.Messages != 30*3 {
		t.Errorf("%+v, %v; want balanced books after some deaths", b, err)
	}
}

func TestPricing_PricesOnTheirOwnShowInTheBooks(t *testing.T) {
	t.Parallel()
	b, err := play(t.Context(), t.TempDir(), 30, "published one by one")
	if err != nil || b.balance() || b.Deaths == 0 {
		t.Errorf("%+v, %v; want orders whose prices are torn or mixed", b, err)
	}
}
