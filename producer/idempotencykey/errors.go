package idempotencykey

import (
	"errors"
	"fmt"
)

// ErrClientGone is the cause of a handler's cancelled context when its client has been gone for 30 s.
var ErrClientGone = errors.New("idempotencykey: the client has gone")

// ErrResponseTooLarge is what Write returns in an inbox's transaction once the body is longer than
// Policy.MaxResultBytes. The response becomes a 500, and the transaction is rolled back.
var ErrResponseTooLarge = errors.New("idempotencykey: the response is too large to be held until the commit")

// statusError tells the guard that a handler answered with a status that is no success: 500 or above, or released.
type statusError struct{ status int }

func (e *statusError) Error() string {
	return fmt.Sprintf("the handler answered with status %d", e.status)
}

// handlerError is what a handler returned or gave to Fail.
type handlerError struct{ error }

// Unwrap returns the handler's error.
func (e *handlerError) Unwrap() error { return e.error }
