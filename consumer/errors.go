package consumer

import (
	"errors"
	"fmt"
)

// MissingIDError says that a message has no ID, or one that cannot be used. Without an ID nothing can be recorded:
// the policy rejects or bypasses such messages.
type MissingIDError struct {
	Topic string
	Err   error // what is wrong with the ID that it has; nil if it has none
}

func (e *MissingIDError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("consumer: message from %q has no usable ID: %v", e.Topic, e.Err)
	}
	return fmt.Sprintf("consumer: message from %q has no ID: have its producer stamp one (header oncemill-id), or "+
		"name where it is with Config.Extractors", e.Topic)
}

// Unwrap returns what is wrong with the ID.
func (e *MissingIDError) Unwrap() error { return e.Err }

// ContentError says that a message has an ID, but something else in it cannot be read: its rerun header, or its payload
// for the configured fingerprint.
type ContentError struct {
	Topic string
	ID    string
	Err   error
}

func (e *ContentError) Error() string {
	return fmt.Sprintf("consumer: message %q from %q: %v", e.ID, e.Topic, e.Err)
}

// Unwrap returns what could not be read.
func (e *ContentError) Unwrap() error { return e.Err }

// ErrOwnDeadLetter says that a dead letter came to the handler that made it, or that made the dead letter behind it.
// The handler did not run. With DeadLetters the delivery is acknowledged; if it came from another topic than
// DeadLetterTopic, it is published there first. Without DeadLetters it is delivered again.
var ErrOwnDeadLetter = errors.New("consumer: a dead letter came to its own handler")

// ErrGuardedTwice says that one delivery entered a guard twice: the middleware was added to the Router and to the
// handler, or two processors guard one handler. The inner guard refused; the handler did not run, and no attempt was
// counted.
var ErrGuardedTwice = errors.New("consumer: handler is guarded twice")

// guardedTwiceError is the ErrGuardedTwice of a handler.
type guardedTwiceError struct{ handler string }

func (e *guardedTwiceError) Error() string {
	return fmt.Sprintf("%v: add the middleware once, to the Router or to handler %q", ErrGuardedTwice, e.handler)
}

// Unwrap returns ErrGuardedTwice.
func (e *guardedTwiceError) Unwrap() error { return ErrGuardedTwice }

// Uncounted makes the outer guard give the attempt back.
func (e *guardedTwiceError) Uncounted() bool { return true }
