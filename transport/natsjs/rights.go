package natsjs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// What is sent to find out whether it may be: it changes nothing.
const (
	probeInfo = ""
	probeNext = "{" // not a request: the server answers that it is a bad one
)

// refusal finds out whether the server lets us publish to a subject. It tells so only by an error of the connection,
// which comes before the answer to a flush, and which may be somebody else's: only one that names the subject counts. It
// returns nil also if that cannot be found out.
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

// noRight is the error of a missing right.
func (l limits) noRight(subject string, err error) error {
	return fmt.Errorf("natsjs: consumer %q of stream %q: no right to publish to %q, allow it: %w", l.consumer, l.stream, subject, err)
}

// newRefusal returns the refusal that has come since an error of the connection, if any.
func newRefusal(nc *nats.Conn, before error) error {
	after := nc.LastError()
	if errors.Is(after, nats.ErrPermissionViolation) && after != before { //nolint:errorlint // is it the same one
		return after
	}
	return nil
}
