package dedupstore

import (
	"cmp"
	"errors"
	"fmt"
)

// ErrClaimLost says that a claim does not hold any more: another owner took over, or the record is gone. Do not
// acknowledge the message because of your own run.
var ErrClaimLost = errors.New("dedupstore: claim lost")

// ErrFull says that a bounded store has no room for a new key. The store has forgotten nothing to make room, and known
// keys can still be settled. Settle returns ErrFull only where a database's disk is full: then nothing was settled, and
// a smaller settlement may find room.
var ErrFull = errors.New("dedupstore: store is full")

// ErrTooLarge says that the store takes no record of this size, however much room it has. It is an ErrFull, too.
var ErrTooLarge error = tooLargeError{}

type tooLargeError struct{}

func (tooLargeError) Error() string { return "dedupstore: record is too large" }

// Is makes it an ErrFull.
func (tooLargeError) Is(target error) bool { return target == ErrFull } //nolint:errorlint // itself

// ErrNotDurable says that a claim was granted, but not made as durable as the store should make claims. The store gave
// it back, and nobody may run on it. Its owner counts as one that has settled, so ask again as another owner. The error
// says nothing about other keys.
var ErrNotDurable = errors.New("dedupstore: claim is not durable")

// InvalidError says which argument, field of a config or policy, or part of a message is wrong. Nothing was done;
// repeating the call is useless.
type InvalidError struct {
	Package string // whose argument it is, such as "consumer"; empty: "oncemill"
	Field   string // such as "Request.Lease"
	Problem string // such as "is zero"
}

func (e *InvalidError) Error() string {
	return cmp.Or(e.Package, "oncemill") + ": " + e.Field + " " + e.Problem
}

func invalid(field, problem string) error {
	return &InvalidError{Package: "dedupstore", Field: field, Problem: problem}
}

// RecordError says that a stored record cannot be read: it was written by a newer version or by something else. It was
// not touched. Look at it with the store's own tools; until then its message is not processed.
type RecordError struct {
	Key     string // as the store names the record
	Problem string
}

func (e *RecordError) Error() string {
	return fmt.Sprintf("dedupstore: record %q: %s", e.Key, e.Problem)
}

// Unreadable returns the records that a page of List or Count could not read. It is not ok if something else is wrong:
// then there is no page.
func Unreadable(err error) (records []*RecordError, ok bool) {
	switch e := err.(type) { //nolint:errorlint // each layer is looked at
	case nil:
		return nil, true
	case *RecordError:
		return []*RecordError{e}, true
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			some, ok := Unreadable(one)
			if !ok {
				return nil, false
			}
			records = append(records, some...)
		}
		return records, true
	case interface{ Unwrap() error }:
		if wrapped := e.Unwrap(); wrapped != nil {
			return Unreadable(wrapped)
		}
	}
	return nil, false
}

// SetupError says why a server, table, stream or topic cannot serve. It is missing, too old, has a setting that does
// not fit, or its user lacks a right. Stores, outboxes and transports return it. Repeating the call is useless until
// somebody acts as it says.
type SetupError struct {
	Package string // whose requirement it is, such as "pgstore"
	Subject string // such as `table "oncemill_dedup"`
	Problem string // what is wrong with it, and what to do
	Err     error  // what the server said; nil if it had no part in it
}

func (e *SetupError) Error() string {
	s := e.Package + ": " + e.Subject + " " + e.Problem
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the server's error, if there is one.
func (e *SetupError) Unwrap() error { return e.Err }
