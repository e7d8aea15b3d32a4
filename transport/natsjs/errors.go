package natsjs

import (
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
)

// ErrRunning is what a second Run of a Worker returns while the first one runs.
var ErrRunning = errors.New("natsjs: Worker is running")

// ErrCutShort says that handlers were still running when Config.Grace was over. Their contexts were cancelled, and Run
// waited for them. If such a handler returned an error, its message was given back and the run used up no attempt.
// Under a policy that parks (oncemill.Irreversible) its outcome is unknown instead, and it does not run again. Make
// Grace longer than the longest handler.
var ErrCutShort = errors.New("natsjs: handlers took longer than Config.Grace, and their contexts were cancelled")

// ErrWorkerSettles is what a Handler's message answers to Nak, NakWithDelay, Term and TermWithReason. The worker
// settles the message, by the handler's error, and this one counts as such.
var ErrWorkerSettles = errors.New("natsjs: the handler settled the message, which its Worker does: return an error")

// errGrace is the cause of the contexts of handlers that took longer than the grace.
var errGrace = errors.New("natsjs: the worker is stopping, and Config.Grace is over")

// setupError returns a *dedupstore.SetupError. The error, if any, is the server's.
func setupError(err error, subject, format string, args ...any) error {
	return &dedupstore.SetupError{
		Package: "natsjs", Subject: subject, Problem: fmt.Sprintf(format, args...), Err: err,
	}
}

// name is what errors call the consumer.
func (l limits) name() string { return fmt.Sprintf("consumer %q of stream %q", l.consumer, l.stream) }

// misset is the error of a field of the consumer.
func (l limits) misset(field, problem string) error {
	return setupError(nil, field+" of "+l.name(), "%s", problem)
}

// noRight is the error of a missing right.
func (l limits) noRight(subject string, err error) error {
	return setupError(err, l.name(), "cannot be used: there is no right to publish to %q, allow it", subject)
}
