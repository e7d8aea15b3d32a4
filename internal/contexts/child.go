// Package contexts makes contexts with values of their own.
package contexts

import (
	"context"
	"fmt"
	"time"
)

// Outside is the key of what is around a guard, and not for the handler within: a consumer's guard hides it.
type Outside struct{}

// A Child is what its parent is. Contexts with values of their own embed it: each context.WithValue is one more to make
// and to walk through.
type Child struct{ parent context.Context }

var _ context.Context = Child{}

// Under returns a child of a context.
func Under(parent context.Context) Child { return Child{parent} }

// Value is the parent's.
func (c Child) Value(key any) any { return c.parent.Value(key) }

// Deadline is the parent's.
func (c Child) Deadline() (time.Time, bool) { return c.parent.Deadline() }

// Done is the parent's.
func (c Child) Done() <-chan struct{} { return c.parent.Done() }

// Err is the parent's.
func (c Child) Err() error { return c.parent.Err() }

// String is the name of the context.
func (c Child) String() string { return name(c.parent) + ".Child" }

// name is the name of a context, as those of package context have one: what it holds is no text.
func name(ctx context.Context) string {
	if s, ok := ctx.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T", ctx)
}
