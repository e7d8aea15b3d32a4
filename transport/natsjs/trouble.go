package natsjs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// trouble deals with what keeps the fetcher from its messages. It is for one goroutine.
type trouble struct {
	*fetcher
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
func (t *trouble) connection(ctx context.Context) {
	now := time.Now()
	switch {
	case t.nc.IsConnected():
		if !t.away.IsZero() {
			t.away, t.said = time.Time{}, time.Time{} // what fails now has another reason
		}
	case t.nc.IsClosed():
		t.stop(fmt.Errorf("natsjs: nothing can be fetched from %s: %w", t.limits.name(),
			withReason(nats.ErrConnectionClosed, t.nc)))
	case t.away.IsZero():
		t.away, t.said = now, time.Time{}
	case now.Sub(t.away) >= awayFor:
		t.warn(ctx, "natsjs: no connection to the server; trying again", withReason(nats.ErrDisconnected, t.nc))
		t.pause = max(t.pause, minPause) // its end is said, too
	}
}

// warn says what is wrong, now and then.
func (t *trouble) warn(ctx context.Context, text string, err error) {
	if now := time.Now(); now.Sub(t.said) >= sayAgain {
		t.said = now
		t.log.WarnContext(ctx, text, "error", err)
	}
}

var (
	// errUnanswered is the trouble of requests that the server does not answer.
	errUnanswered = errors.New("natsjs: the server does not answer")

	// errAlone is the trouble with a leader that must not be asked.
	errAlone = errors.New("natsjs: the consumer's leader hears nothing of most of its replicas")
)

// note makes up its mind about a request that has ended. If there is no going on, it stops the run.
func (t *trouble) note(ctx context.Context, r fetched) {
	if errors.Is(r.err, errUnanswered) {
		r.err = withRefusal(r.err, t.nc)
	}
	switch {
	case r.err == nil && r.got == 0 && t.pause > 0 && time.Now().Before(t.until):
		return // it was asked for before the trouble, and says nothing about its end
	case r.err == nil:
		if t.pause > 0 {
			t.log.InfoContext(ctx, "natsjs: messages can be fetched again")
		}
		t.pause, t.said = 0, time.Time{}
		t.watcher.missed(nil)
		return
	case t.nc.IsClosed():
		return // which ends the run
	}
	t.pause = min(max(2*t.pause, minPause), maxPause)
	pause := t.pause
	if t.nc.IsConnected() { // else that is what is wrong
		t.warn(ctx, "natsjs: messages cannot be fetched; trying again", r.err)
		if t.diagnose(ctx) {
			pause = min(pause, goneFor/4)
		}
	}
	t.until = time.Now().Add(pause)
}

// diagnose asks the server whether there is a right to fetch from the consumer, and the consumer. It reports whether
// that is missing, and stops the run if there is no going on.
func (t *trouble) diagnose(ctx context.Context) (gone bool) {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := refusal(short, t.nc, t.limits.nextSubject, probeNext); err != nil {
		t.stop(t.limits.noRight(t.limits.nextSubject, err))
		return false
	}
	_, err := t.watcher.look(short, 2*time.Second)
	return missing(err)
}

// leaderIsAlone reports whether the consumer's leader has lost its majority. The leader takes up to 20 s to notice.
// Until then it counts, for each request, deliveries of messages that it does not send. If nobody answers, a request
// does no harm, and may be answered first.
func (f *fetcher) leaderIsAlone(ctx context.Context) bool {
	info, err := f.watcher.look(ctx, 500*time.Millisecond)
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
