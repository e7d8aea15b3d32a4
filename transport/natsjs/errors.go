package natsjs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

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
func (l consumerInfo) name() string {
	return fmt.Sprintf("consumer %q of stream %q", l.consumer, l.stream)
}

// misset is the error of a field of the consumer.
func (l consumerInfo) misset(field, problem string) error {
	return setupError(nil, field+" of "+l.name(), "%s", problem)
}

// noRight is the error of a missing right.
func (l consumerInfo) noRight(subject string, err error) error {
	return setupError(err, l.name(), "cannot be used: there is no right to publish to %q, allow it", subject)
}

// Probes of the right to publish: they change nothing.
const (
	probeInfo = ""
	probeNext = "{" // not a request: the server answers that it is a bad one
)

// refusal finds out whether the server lets us publish to a subject. The server tells only by an error of the
// connection, before the answer to a flush. That error may be another caller's, so only one that names the subject
// counts. It returns nil also if it cannot find out.
func refusal(ctx context.Context, nc *nats.Conn, subject, probe string) error {
	if !nc.IsConnected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout) // a flush needs a deadline
	defer cancel()
	for range probes {
		before := nc.LastError()
		if err := nc.PublishRequest(subject, nc.NewInbox(), []byte(probe)); err != nil {
			return nil // not to be found out
		}
		if err := nc.FlushWithContext(ctx); err != nil {
			return nil // not to be found out
		}
		if err := newRefusal(nc, before); err == nil || strings.Contains(err.Error(), strconv.Quote(subject)) {
			return err
		} // else somebody else's, which may have come after ours
	}
	return nil
}

// probes is how often is asked on a connection with which somebody else is refused things all the time.
const probes = 5

// newRefusal returns the refusal that has come since an error of the connection, if any.
func newRefusal(nc *nats.Conn, before error) error {
	after := nc.LastError()
	if errors.Is(after, nats.ErrPermissionViolation) && after != before { //nolint:errorlint // is it the same one
		return after
	}
	return nil
}

// withRefusal adds the server's last refusal, if any, to an error that no answer came. If the server refuses the
// subscription to the answer, it tells only the connection.
func withRefusal(err error, nc *nats.Conn) error {
	if last := nc.LastError(); errors.Is(last, nats.ErrPermissionViolation) ||
		errors.Is(last, nats.ErrMaxSubscriptionsExceeded) {
		return fmt.Errorf("%w, and the server has refused the connection something: %w", err, last)
	}
	return err
}

// withReason adds to an error that there is no connection why the last attempt failed, such as a refused certificate or
// credentials. Only the connection knows that.
func withReason(err error, nc *nats.Conn) error {
	closed := errors.Is(err, nats.ErrConnectionClosed)
	if !closed && !errors.Is(err, nats.ErrDisconnected) { // the connection's lock is held while something is written
		return err
	}
	last := nc.LastError()
	switch {
	case last == nil || errors.Is(err, last) || !closed && nc.IsConnected():
		return err
	case closed:
		return fmt.Errorf("%w for good, after: %v", err, last) //nolint:errorlint // errors.Is must not match it
	}
	return fmt.Errorf("%w, and did not let the client in: %v", err, last) //nolint:errorlint // as above
}
