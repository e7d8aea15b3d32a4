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
	stop   func() bool // watching the request; nil: it does not end

	mu                 sync.Mutex
	begun, gone, ended bool
	timer              *time.Timer // runs when the client has gone
}

// newStay returns the context of a run, which the stay ends at its end.
func newStay(request context.Context, linger time.Duration) (context.Context, *stay) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(request))
	s := &stay{cancel: cancel, linger: linger}
	if request.Done() != nil {
		s.stop = context.AfterFunc(request, func() { s.left(context.Cause(request)) })
	}
	return ctx, s
}

// begin says that the handler begins, and reports false if the run has ended before.
func (s *stay) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = s.begun || !s.gone
	return s.begun
}

// left is called when the request's context has ended.
func (s *stay) left(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
	case !s.begun:
		s.gone = true
		s.cancel(cause)
	default: // at once if it is negative
		s.timer = time.AfterFunc(s.linger, func() { s.cancel(fmt.Errorf("%w: %w", ErrClientGone, cause)) })
	}
}

// end is called when the run is over.
func (s *stay) end() {
	if s.stop != nil {
		s.stop()
	}
	s.mu.Lock()
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.cancel(nil)
}
