package contexts_test

import (
	"context"
	"errors"
	"testing"

	"github.com/oncemill/oncemill/internal/contexts"
)

type valued struct{ contexts.Child }

func (v *valued) Value(k any) any {
	if k == "own" {
		return 8
	}
	return v.Child.Value(k)
}

var errParent = errors.New("the parent's end")

type key struct{}

type lower struct{}

// A context that embeds a child ends with its parent, and for the same cause.
func TestChild_EndsWithItsParent(t *testing.T) {
	parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 7))
	ctx := &valued{contexts.Under(parent)}
	below, end := context.WithCancel(context.WithValue(ctx, lower{}, 9))
	defer end()
	if ctx.Err() != nil || below.Err() != nil {
		t.Fatalf("before the end: %v, below it %v", ctx.Err(), below.Err())
	}
	if below.Value(key{}) != 7 || below.Value("own") != 8 || below.Value(lower{}) != 9 || parent.Value("own") != nil {
		t.Error("values are not where they belong")
	}
	cancel(errParent)
	<-below.Done()
	if context.Cause(ctx) != errParent || context.Cause(below) != errParent { //nolint:errorlint // itself
		t.Errorf("cause %v, below it %v", context.Cause(ctx), context.Cause(below))
	}
}
