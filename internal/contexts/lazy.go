package contexts

import (
	"context"
	"sync/atomic"
	"time"
)

// A Lazy context is what its parent is, and can be cancelled. It is entered at its parent only when somebody asks for
// its end: most handlers never do.
type Lazy struct {
	parent context.Context
	end    atomic.Pointer[end]
}

var _ context.Context = (*Lazy)(nil)

type end struct {
	context.Context
	cancel context.CancelCauseFunc
}

// over is the end of contexts that were cancelled before anybody asked.
var over = func() *end {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return &end{ctx, func(error) {}}
}()

// Begin makes it a child of a context. Call it once, before anything else.
func (l *Lazy) Begin(parent context.Context) { l.parent = parent }

// Follow makes it a child of a context that ends with that and not before. Call it instead of Begin.
func (l *Lazy) Follow(parent context.Context) {
	l.parent = parent
	l.end.Store(&end{parent, func(error) {}})
}

// Cancel ends the context. Without a cause that is context.Canceled.
func (l *Lazy) Cancel(cause error) {
	if cause != nil || l.parent.Err() != nil || !l.end.CompareAndSwap(nil, over) {
		l.asked().cancel(cause)
	}
}

// asked returns the end, which it makes for the first that asks.
func (l *Lazy) asked() *end {
	if e := l.end.Load(); e != nil {
		return e
	}
	ctx, cancel := context.WithCancelCause(l.parent)
	if !l.end.CompareAndSwap(nil, &end{ctx, cancel}) {
		cancel(nil)
	}
	return l.end.Load()
}

// Deadline is the parent's.
func (l *Lazy) Deadline() (time.Time, bool) { return l.parent.Deadline() }

// Done is closed when the context ends.
func (l *Lazy) Done() <-chan struct{} { return l.asked().Done() }

// Err says whether the context has ended.
func (l *Lazy) Err() error {
	if e := l.end.Load(); e != nil {
		return e.Err()
	}
	return l.parent.Err()
}

// Value is the parent's. Package context asks here for the cause of the end, too.
func (l *Lazy) Value(key any) any {
	switch e := l.end.Load(); e {
	case nil:
		return l.parent.Value(key)
	case over:
		if own := e.Value(key); own != nil {
			return own
		}
		return l.parent.Value(key)
	default:
		return e.Value(key)
	}
}

// String is the name of the context.
func (l *Lazy) String() string { return name(l.parent) + ".Lazy" }
