// Package marks is what an error can say of the run that it ended, and how to find it.
package marks

import "time"

// A Mark is one of the errors below.
type Mark interface {
	error
	mark()
}

// Marked is the error under a mark.
type Marked struct{ Err error }

func (e *Marked) Error() string { return e.Err.Error() }

// Unwrap returns it.
func (e *Marked) Unwrap() error { return e.Err }

func (*Marked) mark() {}

// Permanent says that no retry can mend it.
type Permanent struct{ Marked }

// Permanent tells it from other errors.
func (*Permanent) Permanent() bool { return true }

// RetryAfter says when to try again.
type RetryAfter struct {
	Marked
	Delay time.Duration
}

// RetryAfter is the delay.
func (e *RetryAfter) RetryAfter() time.Duration { return e.Delay }

// NoEffect vouches that the run had no effect.
type NoEffect struct{ Marked }

// NoEffect tells it from other errors.
func (*NoEffect) NoEffect() bool { return true }

// Uncounted says that the attempt does not count.
type Uncounted struct{ Marked }

// Uncounted tells it from other errors.
func (*Uncounted) Uncounted() bool { return true }

// Find finds what an error says of its own run. It looks through wrapped errors like errors.As, but not into an Answer,
// a guard's error: that speaks of another run, which the handler made (a nested Do).
func Find[E any, Answer error](err error) (found E, ok bool) {
	for err != nil {
		if e, is := err.(E); is {
			return e, true
		}
		switch e := err.(type) { //nolint:errorlint // this is the search
		case Answer:
			return found, false
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, wrapped := range e.Unwrap() {
				if found, ok = Find[E, Answer](wrapped); ok {
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

// Spares reports whether an error says that its run's attempt does not count.
func Spares[Answer error](err error) bool {
	u, ok := Find[interface{ Uncounted() bool }, Answer](err)
	return ok && u.Uncounted()
}
