package txctx_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/oncemill/oncemill/internal/txctx"
)

func TestApart_HidesWhatBelongsToTheRunAround(t *testing.T) {
	type other struct{}
	ctx := context.WithValue(txctx.With(txctx.With(context.Background(), 1), "x"), other{}, "kept")
	inner := txctx.With(txctx.Apart(ctx), "y")
	if _, found := txctx.From[int](inner); found {
		t.Error("a run joins the transaction of the run around it")
	}
	if tx, _ := txctx.From[string](inner); tx != "y" || inner.Value(other{}) != "kept" {
		t.Errorf("it has %q of its own, and %v of others", tx, inner.Value(other{}))
	}
	innermost, end := context.WithCancel(txctx.Apart(inner))
	end()
	if tx, found := txctx.Around[int](innermost); !found || tx != 1 {
		t.Errorf("around it is %v, %v", tx, found)
	}
	if tx, _ := txctx.Around[string](innermost); tx != "y" {
		t.Errorf("nearest around it is %q", tx)
	}
	if _, found := txctx.Around[bool](innermost); found {
		t.Error("found what is not there")
	}
}

func TestFrom_FindsTheInnermostOfItsType(t *testing.T) {
	ctx := txctx.With[fmt.Stringer](txctx.With(txctx.With(context.Background(), 1), "x"), nil)
	if tx, found := txctx.From[int](ctx); !found || tx != 1 {
		t.Errorf("int: %v, %v", tx, found)
	}
	if tx, found := txctx.From[string](txctx.With(ctx, "y")); !found || tx != "y" {
		t.Errorf("string: %v, %v", tx, found)
	}
	if tx, found := txctx.From[fmt.Stringer](ctx); found {
		t.Errorf("nil counts as %v", tx)
	}
	if _, found := txctx.From[bool](ctx); found {
		t.Error("found what is not there")
	}
}
