package contexts_test

import (
	"context"
	"testing"

	"github.com/oncemill/oncemill/internal/contexts"
)

func TestVeiled_TellsNothingUntilItIsLifted(t *testing.T) {
	t.Parallel()
	type outer struct{}
	veiled := contexts.Hide(context.WithValue(t.Context(), key{}, 7))
	over := context.WithValue(veiled, outer{}, 8)
	if got := over.Value(key{}); got != nil {
		t.Errorf("behind the veil there is %v", got)
	}
	if got := over.Value(outer{}); got != 8 {
		t.Errorf("before the veil there is %v, want 8", got)
	}
	v := contexts.VeilOf(over)
	if v != veiled {
		t.Fatalf("the veil is %v", v)
	}
	v.Lift()
	if got := over.Value(key{}); got != 7 {
		t.Errorf("behind the lifted veil there is %v, want 7", got)
	}
	if got := contexts.VeilOf(t.Context()); got != nil {
		t.Errorf("a veil that nobody made: %v", got)
	}
}
