package txctx_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/oncemill/oncemill/internal/txctx"
)

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
