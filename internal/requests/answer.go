package requests

import (
	"errors"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// What a client is told instead of a response. docs/http.md and docs/rpc.md explain the codes.
const (
	Reused      = "key-reused"
	InProgress  = "in-progress"
	NotKept     = "response-dropped"
	Unknown     = "outcome-unknown"
	Uncommitted = "not-committed"
	Unavailable = "unavailable"
	Internal    = "misconfigured"
)

// A Run is what a request's own run was. Failed is what it returned.
type Run struct {
	Ran, Panicked, Inbox bool
	Failed               error
}

// An Answer says what a client gets although its key has no known outcome: the handler's response, or what Code says.
type Answer struct {
	Own   bool
	Code  string
	Retry time.Duration // when to come again, if Again
	Again bool
}

// Undone decides what a request is answered with when the guard returns an error.
func (r Run) Undone(err error) Answer {
	var res oncemill.Result
	if answer, ok := errors.AsType[*oncemill.Error](err); ok {
		res = answer.Result
	}
	again := res.Status == oncemill.StatusRetry
	_, conflict := errors.AsType[*dedupstore.ConflictError](err)
	released := r.Failed != nil && errors.Is(err, r.Failed) && !errors.Is(err, oncemill.ErrClaimLost)
	switch {
	case !r.Ran, conflict: // the handler's response says nothing of the request
	// it is true, although repeats will not get it
	case r.Panicked, released, res.Status == oncemill.StatusUnrecorded && !r.Inbox:
		a := Answer{Own: true}
		if again {
			a.Retry, a.Again = res.Wait, res.Wait > 0
		}
		return a
	case again && !res.Uncounted && r.Inbox: // neither the handler's error, nor because of others
		return Answer{Code: Uncommitted, Retry: res.Wait, Again: true}
	}
	return refusal(res, err)
}

// refusal says what a guard's error means for a client.
func refusal(res oncemill.Result, err error) Answer {
	switch res.Status {
	case oncemill.StatusNotDue:
		return Answer{Code: Unavailable, Retry: res.Wait, Again: true}
	case oncemill.StatusBusy, oncemill.StatusLost: // another process is at it, or took over
		return Answer{Code: InProgress, Retry: res.Wait, Again: true}
	case oncemill.StatusMismatch:
		return Answer{Code: Reused}
	}
	if _, invalid := err.(*dedupstore.InvalidError); invalid { //nolint:errorlint // the guard's own, not a handler's
		return Answer{Code: Internal}
	}
	return Answer{Code: Unavailable, Again: true}
}

// Counts reports whether an outcome is that of the request's own run. Otherwise the run could not be committed, another
// one has decided, or the handler has ended the inbox's transaction itself, whatever it says then.
func (r Run) Counts(res oncemill.Result, made bool) bool {
	ended := r.Inbox && !made && !r.Panicked && res.Outcome.Kind == dedupstore.Unknown && len(res.Outcome.Result) == 0
	return (made || !res.Duplicate) && r.Ran && !ended &&
		(res.Outcome.Kind == dedupstore.Succeeded) == (r.Failed == nil)
}

// Without is the code for an outcome without a response.
func (r Run) Without(o dedupstore.Outcome) string {
	switch {
	case o.Kind == dedupstore.Succeeded: // the store had no room for it, or an operator said so
		return NotKept
	case r.Inbox && o.Kind == dedupstore.Failed:
		return Uncommitted
	}
	return Unknown
}
