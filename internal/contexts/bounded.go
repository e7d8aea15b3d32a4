package contexts

import (
	"context"
	"time"
)

// A Bounded context has the values of another one, and nothing else of it.
type Bounded struct {
	values context.Context
	end    time.Time
	done   <-chan struct{}
}

var _ context.Context = (*Bounded)(nil)

// Bound returns a context with the values of ctx, but with an end of its own: at that time, done is closed by somebody.
func Bound(ctx context.Context, end time.Time, done <-chan struct{}) *Bounded {
	return &Bounded{ctx, end, done}
}

// Value returns a value of the other context, but not the one by which package context asks for its cause.
func (b *Bounded) Value(key any) any { return context.WithoutCancel(b.values).Value(key) }

// Deadline returns when it ends.
func (b *Bounded) Deadline() (time.Time, bool) { return b.end, true }

// Done is closed when it has ended.
func (b *Bounded) Done() <-chan struct{} { return b.done }

// Err returns context.DeadlineExceeded when it has ended.
func (b *Bounded) Err() error {
	select {
	case <-b.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// String is the name of the context.
func (b *Bounded) String() string { return name(b.values) + ".Bounded" }
