package requests

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill"
)

// Linger is how long a run goes on after its client has gone.
const Linger = 30 * time.Second

// LeastResult is the fewest bytes of a stored response that a policy may allow: a problem must fit.
const LeastResult = 1 << 10

// CheckPolicy refuses a policy under which responses could not be repeated, or would reach others.
func CheckPolicy(p oncemill.Policy) error {
	if p.Mismatch == oncemill.MismatchIgnore {
		return errors.New(`guard has a policy with Mismatch "ignore": another request under a key would get its ` +
			`response`)
	}
	if p.MaxResultBytes < LeastResult {
		return fmt.Errorf("guard has a policy with MaxResultBytes %d, want at least %d", p.MaxResultBytes, LeastResult)
	}
	return nil
}

// Detach returns the context of a run, with the request's values but its own end. Before begin it ends with the
// request, and begin then returns false. After begin it ends, with the cause gone, when the client has been away for
// some time.
func Detach(request context.Context, linger time.Duration, gone error) (
	ctx context.Context, begin func() bool, end func(),
) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(request))
	const begun, left = 1, 2
	var state atomic.Int32
	stop := context.AfterFunc(request, func() {
		cause := context.Cause(request)
		if state.CompareAndSwap(0, left) {
			cancel(cause)
			return
		}
		select {
		case <-time.After(linger):
			cancel(fmt.Errorf("%w: %w", gone, cause))
		case <-ctx.Done():
		}
	})
	begin = func() bool { return state.CompareAndSwap(0, begun) || state.Load() == begun }
	return ctx, begin, func() { stop(); cancel(nil) }
}

// PanicError is a handler's panic. Its text is stored, so it leaves out the panic's value, which may be data.
type PanicError struct{ *oncemill.PanicError }

func (e *PanicError) Error() string { return fmt.Sprintf("the handler panicked with a %T", e.Value) }

// Released is the error of a run whose response gives the key back. A server error counts as an attempt, and a policy
// that parks does not release it. A refusal vouches that nothing was done, so it does neither.
func Released(response error, server bool) error {
	err := oncemill.RetryAfter(0, response)
	if !server {
		err = oncemill.NoEffect(oncemill.Uncounted(err))
	}
	return err
}
