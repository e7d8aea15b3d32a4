package natsjs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

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
