package idempotencykey

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A stay is the context of a run, with the values of the request's but an end of its own: while the run has not begun it
// ends with the request, and from then on only when the client has been gone for some time.
type stay struct {
	cancel context.CancelCauseFunc
	linger time.Duration

	mu           sync.Mutex
	begun, ended bool
	timer        *time.Timer // runs when the client has gone
}

// newStay returns the context of a run, and a function that ends it.
func newStay(request context.Context, linger time.Duration) (ctx context.Context, s *stay, end func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(request))
	s = &stay{cancel: cancel, linger: linger}
	stop := context.AfterFunc(request, func() { s.left(context.Cause(request)) })
	return ctx, s, func() {
		stop()
		s.end()
		cancel(nil)
	}
}

// begin says that the handler begins.
func (s *stay) begin() {
	s.mu.Lock()
	s.begun = true
	s.mu.Unlock()
}

// left is called when the request's context has ended.
func (s *stay) left(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
	case !s.begun:
		s.cancel(cause)
	default: // at once if it is negative
		s.timer = time.AfterFunc(s.linger, func() { s.cancel(fmt.Errorf("%w: %w", ErrClientGone, cause)) })
	}
}

func (s *stay) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
