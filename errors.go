package oncemill

import (
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/marks"
)

// ErrClaimLost says that another owner took the key over, or that the lease could not be proven to hold. It is the
// cause of the handler's cancelled context, and every Error with StatusLost is one.
var ErrClaimLost = dedupstore.ErrClaimLost

// ErrMaxRun says that a run took longer than Policy.MaxRun. It is the cause of the handler's cancelled context.
var ErrMaxRun = errors.New("oncemill: the run took longer than Policy.MaxRun")

// An Error is an answer of a guard that is no success, where Go wants an error. Its Status says which answer, and the
// Result has what belongs to it. A Done one is a failure, or an outcome that is unknown: see Outcome.
//
// errors.As finds the outermost Error, the answer of the guard that you called. Its handler may have returned the Error
// of another guard. That one lies deeper, speaks of another run, and has another Key.
type Error struct {
	Result
	Key dedupstore.Key
}

func (e *Error) Error() string {
	switch e.Status {
	case StatusDone:
		what := "failed"
		switch {
		case e.Outcome.Kind == dedupstore.Unknown:
			what = "ended with unknown outcome"
		case e.Outcome.Exhausted:
			what = "failed, attempts exhausted"
		}
		return fmt.Sprintf("oncemill: %s: %s", what, e.Outcome.Reason)
	case StatusBusy:
		return fmt.Sprintf("oncemill: in progress elsewhere, lease ends in %v", e.Wait)
	case StatusNotDue:
		return fmt.Sprintf("oncemill: retry is not due for %v", e.Wait)
	case StatusRetry:
		return fmt.Sprintf("oncemill: attempt %d failed, retry in %v: %v", e.Attempt, e.Wait, e.Handler)
	case StatusLost:
		if e.Handler == nil {
			return ErrClaimLost.Error()
		}
		return fmt.Sprintf("%v; handler: %v", ErrClaimLost, e.Handler)
	case StatusMismatch:
		return fmt.Sprintf("oncemill: message ID %q was used before with other content", e.Key.ID)
	case StatusStoreDown:
		return fmt.Sprintf("oncemill: message %q: %v", e.Key.ID, e.Err)
	case StatusUnrecorded:
		what := "succeeded"
		if e.Handler != nil {
			what = fmt.Sprintf("failed (%v)", e.Handler)
		}
		return fmt.Sprintf("oncemill: handler of message %q %s, but the outcome could not be stored: %v",
			e.Key.ID, what, e.Err)
	case StatusUnpublished:
		return fmt.Sprintf("oncemill: publish what the run produced: %v", e.Err)
	}
	return "oncemill: no answer"
}

// Unwrap returns what the handler returned and why the store or the publisher refused, as far as there are such errors,
// and ErrClaimLost for StatusLost.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Status == StatusLost {
		errs = append(errs, ErrClaimLost)
	}
	for _, err := range []error{e.Handler, e.Err} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// ErrNoResult says that the outcome is a success whose result cannot be given to this duplicate. It was larger than
// Policy.MaxResultBytes, the store had no room for it, or it does not decode into the wanted type. The work is done.
var ErrNoResult = errors.New("oncemill: the work is done, but its result cannot be given")

// PanicError is a handler's panic. It counts as a failed attempt, which may be tried again. Policy.Logger has got it,
// with its stack.
type PanicError struct {
	Value any // nil: it ended its goroutine (runtime.Goexit)
	Stack []byte
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "handler ended its goroutine"
	}
	return fmt.Sprintf("handler panicked: %v", e.Value)
}

// As looks for an error in the panic's value, for errors.As: so a store sees the database's error in it. What the value
// says of the run, such as Permanent, does not count.
func (e *PanicError) As(target any) (found bool) {
	defer func() { _ = recover() }() // of a method of the value, such as that of a nil pointer
	err, is := e.Value.(error)
	return is && errors.As(err, target)
}

// Permanent marks an error that no retry can mend: it becomes the outcome, and every duplicate gets it. It returns nil
// for nil. errors.As finds it by the interface{ error; Permanent() bool }.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &marks.Permanent{Marked: marks.Marked{Err: err}}
}

// RetryAfter asks that the run be tried again after d instead of the policy's backoff. The attempt counts. A negative d
// means at once, and more than a year means a year. It returns nil for a nil error. errors.As finds it by the
// interface{ error; RetryAfter() time.Duration }.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &marks.RetryAfter{Marked: marks.Marked{Err: err}, Delay: min(max(d, 0), longestDelay)}
}

// NoEffect vouches that the run failed before it had any effect. Under a policy that parks (Irreversible), only such
// errors are tried again; all others leave the outcome unknown. It returns nil for nil.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return &marks.NoEffect{Marked: marks.Marked{Err: err}}
}

// Uncounted asks that the run be tried again without counting the attempt. Use it for outages of others, which may last
// longer than Policy.MaxAttempts takes. The run is tried again after the policy's backoff, or after RetryAfter's delay,
// without a limit. Under a policy that parks it needs NoEffect as well. It returns nil for nil.
func Uncounted(err error) error {
	if err == nil {
		return nil
	}
	return &marks.Uncounted{Marked: marks.Marked{Err: err}}
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// mark finds what a handler's error says of its own run.
func mark[E any](err error) (found E, ok bool) { return marks.Find[E, *Error](err) }

// uncounted reports whether an error says that its run was interrupted rather than failed.
func uncounted(err error) bool { return marks.Spares[*Error](err) }

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "oncemill", Field: field, Problem: problem}
}
