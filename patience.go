package oncemill

import (
	"context"
	"sync"
	"time"

	"github.com/oncemill/oncemill/internal/contexts"
)

// A patience makes contexts that bound one operation of the store each, and share their ends: a timer of its own for
// each would cost more than the rest of it. So an operation has up to an eighth more than its timeout. It is safe for
// concurrent use, and nothing it makes has to be released.
type patience struct {
	timeout time.Duration

	mu    sync.Mutex
	end   time.Time     // of what is made now
	done  chan struct{} // closed then
	renew time.Time     // when the next end is to be made
}

// of returns a context with the values of ctx, but with an end of its own.
func (p *patience) of(ctx context.Context) context.Context {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil || !now.Before(p.renew) {
		slice := p.timeout / 8
		done := make(chan struct{})
		time.AfterFunc(p.timeout+slice, func() { close(done) })
		p.end, p.done, p.renew = now.Add(p.timeout+slice), done, now.Add(slice)
	}
	return contexts.Bound(ctx, p.end, p.done)
}
