// Package contexts makes contexts that cost next to nothing while nobody looks at their ends: most work is over before
// somebody asks for its Done.
package contexts

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A Lazy context is what context.WithCancelCause makes, but it enters itself with its parent only when somebody asks
// for Done. Use Init before anything else. It must not be copied after that. It is safe for concurrent use.
type Lazy struct {
	parent context.Context

	mu     sync.Mutex
	inner  context.Context // what WithCancelCause has made of it; nil: nobody needed that
	cancel context.CancelCauseFunc
	ended  bool // before there was an inner one
	cause  error
}

var _ context.Context = (*Lazy)(nil)

// Init sets the parent.
func (c *Lazy) Init(parent context.Context) { c.parent = parent }

// Cancel ends the context, unless it or its parent has ended. Without a cause that is context.Canceled.
func (c *Lazy) Cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
	case c.inner == nil && c.parent.Err() == nil:
		c.ended, c.cause = true, cause
	default:
		c.make()
		c.cancel(cause)
	}
}

// make makes the inner context, once. The context is locked.
func (c *Lazy) make() context.Context {
	switch {
	case c.inner != nil:
	case c.ended: // what becomes of the parent now changes nothing
		c.inner, c.cancel = context.WithCancelCause(context.WithoutCancel(c.parent))
		c.cancel(c.cause)
	default:
		c.inner, c.cancel = context.WithCancelCause(c.parent)
	}
	return c.inner
}

// Done is closed when the context or its parent ends.
func (c *Lazy) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.make().Done()
}

// Err is as with every context.
func (c *Lazy) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.inner != nil:
		return c.inner.Err()
	case c.ended:
		return context.Canceled
	}
	return c.parent.Err()
}

// Deadline is the parent's.
func (c *Lazy) Deadline() (time.Time, bool) { return c.parent.Deadline() }

// Value is the parent's. By it, package context also asks for causes.
func (c *Lazy) Value(key any) any {
	c.mu.Lock()
	from := c.parent
	if c.inner != nil || c.ended {
		from = c.make()
	}
	c.mu.Unlock()
	return from.Value(key)
}

// String is the name of the context, as those of package context have one: what it holds is no text.
func (c *Lazy) String() string { return name(c.parent) + ".Lazy" }

func name(ctx context.Context) string {
	if s, ok := ctx.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T", ctx)
}
