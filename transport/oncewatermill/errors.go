package oncewatermill

import (
	"errors"

	"github.com/oncemill/oncemill/dedupstore"
)

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "oncewatermill", Field: field, Problem: problem}
}

// orderError says that the steps of a chain stand in an order that loses messages, or that a step is missing or there
// twice.
func orderError(problem string) error { return errors.New("oncewatermill: chain: " + problem) }

var (
	// errNacked says that only the Router has decided.
	errNacked = errors.New("oncewatermill: message nacked")

	// errNackedBefore is the error of a message for which the broker has been asked to deliver it again.
	errNackedBefore = errors.New("oncewatermill: the message was nacked before its handler was called")

	// errHandlerNacked is the error of a handler that says with a nack that it has failed.
	errHandlerNacked = errors.New("oncewatermill: the handler has nacked its message, and returned no error")

	// errSubscriberClosed refuses what comes after Close.
	errSubscriberClosed = errors.New("oncewatermill: Subscriber is closed")
)
