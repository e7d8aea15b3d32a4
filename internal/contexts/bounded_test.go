package contexts_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/contexts"
)

// A bounded context ends for reasons of its own, whatever has become of the one that it has its values from.
func TestBounded_HasNothingOfTheOthersEnd(t *testing.T) {
	other, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 7))
	cancel(errParent)
	done := make(chan struct{})
	ctx := contexts.Bound(other, time.Now(), done)
	child, endChild := context.WithCancel(ctx)
	defer endChild()
	if ctx.Err() != nil || child.Err() != nil || context.Cause(child) != nil {
		t.Errorf("before its end: %v, of a child %v", ctx.Err(), context.Cause(child))
	}
	close(done)
	<-child.Done()
	if context.Cause(ctx) != context.DeadlineExceeded || context.Cause(child) != context.DeadlineExceeded { //nolint:errorlint // itself
		t.Errorf("cause %v, of a child %v", context.Cause(ctx), context.Cause(child))
	}
	if child.Value(key{}) != 7 {
		t.Error("the other's value is gone")
	}
}
