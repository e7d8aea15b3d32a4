// Package answertest is for tests that look at how a guard has answered.
package answertest

import (
	"errors"
	"slices"
	"testing"

	"github.com/oncemill/oncemill"
)

// Is returns the answer in an error, if it has one of these statuses.
func Is(err error, want ...oncemill.Status) (*oncemill.Error, bool) {
	e, ok := errors.AsType[*oncemill.Error](err)
	if !ok || !slices.Contains(want, e.Status) {
		return &oncemill.Error{}, false
	}
	return e, true
}

// Want returns the answer in an error, which must have one of these statuses.
func Want(t testing.TB, err error, want ...oncemill.Status) *oncemill.Error {
	t.Helper()
	e, ok := Is(err, want...)
	if !ok {
		t.Fatalf("error %v (%T), want an answer with a status of %v", err, err, want)
	}
	return e
}
