package producer

import "errors"

// Failures returns what an error of Publisher.Publish says about each of the call's messages. It reports false if the
// error says nothing about single messages, or nothing that makes sense: then it is unknown which of them were
// published.
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

// alone returns the PublishError that err is or wraps. It returns nil if there are other errors beside it, because
// those may be about messages that it does not mention.
func alone(err error) *PublishError {
	for ; err != nil; err = errors.Unwrap(err) { // not into joined errors
		if e, ok := err.(*PublishError); ok { //nolint:errorlint // this is the search
			return e
		}
	}
	return nil
}
