package producer

import "errors"

// Failures returns what an error of Publisher.Publish says about the messages of the call, of which there were so many.
// It reports false if it says nothing about single messages, or nothing that makes sense: then it is unknown which of
// them were published.
func Failures(err error, messages int) ([]Failure, bool) {
	e := alone(err)
	if e == nil || len(e.Failures) == 0 {
		return nil, false
	}
	for _, f := range e.Failures {
		if f.Index < 0 || f.Index >= messages || f.Err == nil {
			return nil, false
		}
	}
	return e.Failures, true
}

// alone returns the PublishError that err is or wraps, and nil if it stands beside other errors: a message that it does
// not mention may be in one of those.
func alone(err error) *PublishError {
	for ; err != nil; err = errors.Unwrap(err) { // not into joined errors
		if e, ok := err.(*PublishError); ok { //nolint:errorlint // this is the search
			return e
		}
	}
	return nil
}
