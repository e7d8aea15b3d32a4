package oncemill

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// ErrClaimLost says that another owner took the key over, or that the lease could not be proven to hold. It is the
// cause of the handler's cancelled context, and every *ClaimLostError is one.
var ErrClaimLost = dedupstore.ErrClaimLost

// ErrMaxRun says that a run took longer than Policy.MaxRun. It is the cause of the handler's cancelled context.
var ErrMaxRun = errors.New("oncemill: the run took longer than Policy.MaxRun")

// ClaimLostError says that another owner took the key over, so this run's outcome was refused. Neither acknowledge the
// message nor ask for its redelivery: the other owner does.
type ClaimLostError struct {
	Handler error // what the handler returned; nil: it succeeded, or did not start
}

func (e *ClaimLostError) Error() string {
	if e.Handler == nil {
		return ErrClaimLost.Error()
	}
	return fmt.Sprintf("%v; handler: %v", ErrClaimLost, e.Handler)
}

// Unwrap returns ErrClaimLost and the handler's error.
func (e *ClaimLostError) Unwrap() []error {
	if e.Handler == nil {
		return []error{ErrClaimLost}
	}
	return []error{ErrClaimLost, e.Handler}
}

// BusyError says that the key has another owner, or that its retry is not due. Deliver the message again after Wait.
type BusyError struct {
	Wait   time.Duration // what remains of the lease, or until the retry is due
	NotDue bool          // the key is free, but its retry is not due
}

func (e *BusyError) Error() string {
	if e.NotDue {
		return fmt.Sprintf("oncemill: retry is not due for %v", e.Wait)
	}
	return fmt.Sprintf("oncemill: in progress elsewhere, lease ends in %v", e.Wait)
}

// RetryError says that the run failed, and may be tried again after Delay. The attempt has been recorded.
type RetryError struct {
	Delay     time.Duration
	Attempt   int  // the attempt that failed; 0 if the store was bypassed
	Uncounted bool // the attempt was given back
	Err       error
}

func (e *RetryError) Error() string {
	return fmt.Sprintf("oncemill: attempt %d failed, retry in %v: %v", e.Attempt, e.Delay, e.Err)
}

// Unwrap returns the handler's error.
func (e *RetryError) Unwrap() error { return e.Err }

// FailedError says that the key's outcome is a failure, or unknown. The first caller and every duplicate get it.
type FailedError struct {
	Outcome   dedupstore.Outcome
	Duplicate bool          // an earlier run decided the outcome
	Age       time.Duration // since the key's first claim, for duplicates
	Fence     uint64        // under which the outcome was decided: what Call.Rerun has to name
	Err       error         // the handler's error; nil for duplicates
}

func (e *FailedError) Error() string {
	what := "failed"
	switch {
	case e.Outcome.Kind == dedupstore.Unknown:
		what = "ended with unknown outcome"
	case e.Outcome.Exhausted:
		what = "failed, attempts exhausted"
	}
	return fmt.Sprintf("oncemill: %s: %s", what, e.Outcome.Reason)
}

// Unwrap returns the handler's error, nil for duplicates.
func (e *FailedError) Unwrap() error { return e.Err }

// MismatchError says that the message ID is known with other content. The handler did not run and the record was not
// touched: either the producer reused an ID, or the fingerprint covers something that changes between copies.
type MismatchError struct{ Key dedupstore.Key }

func (e *MismatchError) Error() string {
	return fmt.Sprintf("oncemill: message ID %q was used before with other content", e.Key.ID)
}

// StoreError says that the store did not answer, or could not read its record. The handler did not run. Deliver the
// message again later.
type StoreError struct {
	Op  string // claim, extend or begin
	Key dedupstore.Key
	Err error
}

func (e *StoreError) Error() string {
	return fmt.Sprintf("oncemill: %s of message %q: %v", e.Op, e.Key.ID, e.Err)
}

// Unwrap returns the store's error.
func (e *StoreError) Unwrap() error { return e.Err }

// UnrecordedError says that the handler ran, but its outcome could not be stored until the lease ended. Do not
// acknowledge the message. When it is delivered again the handler may run again.
type UnrecordedError struct {
	Key     dedupstore.Key
	Handler error // what the handler returned; nil: it succeeded
	Err     error // why the store refused
}

func (e *UnrecordedError) Error() string {
	what := "succeeded"
	if e.Handler != nil {
		what = "failed (" + e.Handler.Error() + ")"
	}
	return fmt.Sprintf("oncemill: handler of message %q %s, but the outcome could not be stored: %v",
		e.Key.ID, what, e.Err)
}

// Unwrap returns both errors.
func (e *UnrecordedError) Unwrap() []error {
	if e.Handler == nil {
		return []error{e.Err}
	}
	return []error{e.Handler, e.Err}
}

// UnpublishedError says that the messages of the run could not be published. Deliver the message again after Delay:
// they will be published without running the handler. Only outputs over Policy.MaxProducedBytes, or for which the store
// has no room, are stored nowhere: then the handler runs again.
type UnpublishedError struct {
	Delay time.Duration
	Err   error
}

func (e *UnpublishedError) Error() string {
	return "oncemill: publish what the run produced: " + e.Err.Error()
}

// Unwrap returns the publisher's error.
func (e *UnpublishedError) Unwrap() error { return e.Err }

// ErrNoResult says that the outcome is a success whose result cannot be given to this duplicate. It was larger than
// Policy.MaxResultBytes, the store had no room for it, or it does not decode into the wanted type. The work is done.
var ErrNoResult = errors.New("oncemill: the work is done, but its result cannot be given")

// PanicError is a handler's panic. It counts as a failed attempt, which may be tried again. Policy.Logger has got it,
// with its stack.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// As looks for an error in the panic's value, for errors.As: so a store sees the database's error in it. What the value
// says of the run, such as Permanent, does not count.
func (e *PanicError) As(target any) (found bool) {
	defer func() { _ = recover() }() // of a method of the value, such as that of a nil pointer
	err, is := e.Value.(error)
	return is && errors.As(err, target)
}

// Permanent marks an error that no retry can mend: it becomes the outcome, and every duplicate gets it. It returns nil
// for nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &PermanentError{err}
}

// PermanentError is what Permanent returns.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns the marked error.
func (e *PermanentError) Unwrap() error { return e.Err }

// RetryAfter asks that the run be tried again after d instead of the policy's backoff. The attempt counts. A negative d
// means at once, and more than a year means a year. It returns nil for a nil error.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &RetryAfterError{max(d, 0), err}
}

// RetryAfterError is what RetryAfter returns.
type RetryAfterError struct {
	Delay time.Duration
	Err   error
}

func (e *RetryAfterError) Error() string { return e.Err.Error() }

// Unwrap returns the error to retry.
func (e *RetryAfterError) Unwrap() error { return e.Err }

// NoEffect vouches that the run failed before it had any effect. Under a policy that parks (Irreversible), only such
// errors are tried again; all others leave the outcome unknown. It returns nil for nil.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return &noEffectError{err}
}

type noEffectError struct{ err error }

func (e *noEffectError) Error() string { return e.err.Error() }

// Unwrap returns the error that had no effect.
func (e *noEffectError) Unwrap() error { return e.err }

// NoEffect lets telemetry tell it from other errors.
func (e *noEffectError) NoEffect() bool { return true }

// Uncounted asks that the run be tried again without counting the attempt. Use it for outages of others, which may last
// longer than Policy.MaxAttempts takes. The run is tried again after the policy's backoff, or after RetryAfter's delay,
// without a limit. Under a policy that parks it needs NoEffect as well. It returns nil for nil.
func Uncounted(err error) error {
	if err == nil {
		return nil
	}
	return &uncountedError{err}
}

type uncountedError struct{ err error }

func (e *uncountedError) Error() string { return e.err.Error() }

// Unwrap returns the error to retry.
func (e *uncountedError) Unwrap() error { return e.err }

// Uncounted says that the attempt does not count.
func (e *uncountedError) Uncounted() bool { return true }

func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

// uncounted reports whether an error says that its run was interrupted rather than failed.
func uncounted(err error) bool {
	u, ok := mark[interface{ Uncounted() bool }](err)
	return ok && u.Uncounted()
}

// mark finds what a handler's error says about its own run. It looks through wrapped errors like errors.As, but not
// into errors of a guard: those speak of another run, which the handler made (a nested Do).
func mark[E any](err error) (found E, ok bool) {
	for err != nil {
		if e, is := err.(E); is {
			return e, true
		}
		switch e := err.(type) { //nolint:errorlint // this is the search
		case *BusyError, *RetryError, *FailedError, *MismatchError, *StoreError, *UnrecordedError, *UnpublishedError,
			*ClaimLostError:
			return found, false
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, wrapped := range e.Unwrap() {
				if found, ok = mark[E](wrapped); ok {
					return found, true
				}
			}
			return found, false
		default:
			return found, false
		}
	}
	return found, false
}

// nested reports whether a handler's error holds an error of a guard that the handler used.
func nested(err error) bool {
	return is[*StoreError](err) || is[*UnrecordedError](err) || is[*RetryError](err) || is[*FailedError](err) ||
		is[*UnpublishedError](err) || is[*ClaimLostError](err)
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "oncemill", Field: field, Problem: problem}
}
