package natsjs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// fetchErrors deals with what keeps the fetcher from its messages. It is for one goroutine.
type fetchErrors struct {
	s     *session
	until time.Time // no request before
	pause time.Duration
	away  time.Time // since when the connection is
	said  time.Time // when it was said last what is wrong
}

const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second

	// awayFor is how long a connection may be away before the log says so: most are back at once.
	awayFor = 3 * time.Second

	// sayAgain is how often the log says it while it lasts: the reason may have changed.
	sayAgain = time.Minute
)

// connection logs that there is no connection, and why, if that lasts. Meanwhile the fetcher asks for nothing, because
// that would fail. A closed connection ends the run: without room no request would show it.
func (e *fetchErrors) connection(ctx context.Context) {
	now := time.Now()
	switch {
	case e.s.nc.IsConnected():
		if !e.away.IsZero() {
			e.away, e.said = time.Time{}, time.Time{} // what fails now has another reason
		}
	case e.s.nc.IsClosed():
		e.s.stop(fmt.Errorf("natsjs: nothing can be fetched from %s: %w", e.s.info.name(),
			withReason(nats.ErrConnectionClosed, e.s.nc)))
	case e.away.IsZero():
		e.away, e.said = now, time.Time{}
	case now.Sub(e.away) >= awayFor:
		e.warn(ctx, "natsjs: no connection to the server; trying again", withReason(nats.ErrDisconnected, e.s.nc))
		e.pause = max(e.pause, minPause) // its end is said, too
	}
}

// warn says what is wrong, now and then.
func (e *fetchErrors) warn(ctx context.Context, text string, err error) {
	if now := time.Now(); now.Sub(e.said) >= sayAgain {
		e.said = now
		e.s.info.log.WarnContext(ctx, text, "error", err)
	}
}

var (
	// errUnanswered is said of requests that the server does not answer.
	errUnanswered = errors.New("natsjs: the server does not answer")

	// errAlone is said of a leader that must not be asked.
	errAlone = errors.New("natsjs: the consumer's leader hears nothing of most of its replicas")
)

// note makes up its mind about a request that has ended. If there is no going on, it stops the run.
func (e *fetchErrors) note(ctx context.Context, r fetched) {
	if errors.Is(r.err, errUnanswered) {
		r.err = withRefusal(r.err, e.s.nc)
	}
	switch {
	case r.err == nil && r.got == 0 && e.pause > 0 && time.Now().Before(e.until):
		return // it was asked for before the trouble, and says nothing about its end
	case r.err == nil:
		if e.pause > 0 {
			e.s.info.log.InfoContext(ctx, "natsjs: messages can be fetched again")
		}
		e.pause, e.said = 0, time.Time{}
		e.s.watcher.missed(nil)
		return
	case e.s.nc.IsClosed():
		return // which ends the run
	}
	e.pause = min(max(2*e.pause, minPause), maxPause)
	pause := e.pause
	if e.s.nc.IsConnected() { // else that is what is wrong
		e.warn(ctx, "natsjs: messages cannot be fetched; trying again", r.err)
		if e.diagnose(ctx) {
			pause = min(pause, goneFor/4)
		}
	}
	e.until = time.Now().Add(pause)
}

// diagnose asks the server whether there is a right to fetch from the consumer, and the consumer. It reports whether
// that is missing, and stops the run if there is no going on.
func (e *fetchErrors) diagnose(ctx context.Context) (gone bool) {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := refusal(short, e.s.nc, e.s.info.nextSubject, probeNext); err != nil {
		e.s.stop(e.s.info.noRight(e.s.info.nextSubject, err))
		return false
	}
	_, err := e.s.watcher.refreshConsumer(short, 2*time.Second)
	return missing(err)
}

// leaderIsAlone reports whether the consumer's leader has lost its majority. The leader takes up to 20 s to notice.
// Until then it counts, for each request, deliveries of messages that it does not send. If nobody answers, a request
// does no harm, and may be answered first.
func (f *fetcher) leaderIsAlone(ctx context.Context) bool {
	info, err := f.s.watcher.refreshConsumer(ctx, 500*time.Millisecond)
	return ctx.Err() != nil || err == nil && alone(info.Cluster)
}

// heardWithin is how long a leader may have heard nothing of a replica that is well: it asks each after a second or
// two.
const heardWithin = 2 * time.Second

// alone reports whether a leader hears of too few replicas to make a majority with them. A replica that has not been
// heard since it leads has a zero and counts as heard: one request too many is better than none ever again.
func alone(c *jetstream.ClusterInfo) bool {
	if c == nil {
		return false
	}
	heard := 1 // the leader
	for _, r := range c.Replicas {
		if r.Active <= heardWithin {
			heard++
		}
	}
	return 2*heard <= 1+len(c.Replicas)
}
