package franz

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/internal/pace"
)

// watching is how a group's member says what goes wrong.
type watching struct {
	group  string
	log    *slog.Logger
	failed chan error   // holds the first error that the worker cannot go on after
	outage pace.Limiter // of lines about an interrupted membership
	broken pace.Limiter // of lines about partitions that cannot be fetched
}

func newWatching(group string, log *slog.Logger) *watching {
	return &watching{group: group, log: log, failed: make(chan error, 1)}
}

// sayEvery is how often is logged what goes wrong again and again.
const sayEvery = time.Minute

// fail ends the run with an error.
func (w *watching) fail(err error) {
	select {
	case w.failed <- err:
	default: // there is one
	}
}

// tell says when a run begins and ends.
func (w *watching) tell(ctx context.Context, handler string, topics []string, run func(context.Context) error) error {
	log := w.log.With("handler", cmp.Or(handler, "a Router's"), "group", w.group, "topics", topics)
	log.InfoContext(ctx, "franz: consuming begins")
	defer log.InfoContext(ctx, "franz: consuming has ended")
	return run(ctx)
}

// failure waits until ctx ends, or until the worker cannot go on, and returns why it cannot.
func (w *watching) failure(ctx context.Context) error {
	select {
	case err := <-w.failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// result returns Run's error: why it has failed, or else what is not confirmed. If both happened, it logs the second.
func (w *watching) result(ctx context.Context, failed, unconfirmed error, line string) error {
	if failed != nil && unconfirmed != nil {
		w.log.WarnContext(ctx, line, "group", w.group, "error", unconfirmed)
	}
	return cmp.Or(failed, unconfirmed)
}

// lookOut logs what kgo tells nobody: that brokers do not answer, or that the group does not let its member in. It does
// so when two looks have found it, and then once a minute. One look takes as long as the timeout at most.
func (w *watching) lookOut(ctx context.Context, every, timeout time.Duration, member func(context.Context) error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var failed bool
	var lines pace.Limiter
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		look, cancel := context.WithTimeout(ctx, timeout)
		err := member(look)
		cancel()
		gone := ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed)
		if err != nil && failed && !gone && lines.Due(sayEvery) {
			w.log.ErrorContext(ctx, "franz: nothing may be consumed for now", "group", w.group, "error", err)
		}
		failed = err != nil
	}
}

var errNoMember = errors.New("the group has not let this member in, or has put it out; the client tries on, and its " +
	"own log says why (kgo.WithLogger)")

// membership returns an error if a client was no member of its group of consumers for so long: one that joins waits for
// the handlers of others.
func membership(cl *kgo.Client, timeout time.Duration) func(context.Context) error {
	member := time.Now()
	return func(context.Context) error {
		if _, generation := cl.GroupMetadata(); generation > 0 {
			member = time.Now()
		}
		if time.Since(member) > timeout {
			return errNoMember
		}
		return nil
	}
}
