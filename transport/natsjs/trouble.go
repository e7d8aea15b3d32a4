package natsjs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// trouble is what stands between the fetcher and the messages. It is for one goroutine.
type trouble struct {
	*fetcher
	until  time.Time // no request before
	pause  time.Duration
	away   time.Time // since when the connection is
	said   time.Time // when that was said last
	failed time.Time // when it was said last that messages cannot be fetched
}

const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second

	// awayFor is how long a connection may be away before that is said: most are back at once.
	awayFor = 3 * time.Second

	// sayAgain is how often it is said while it lasts: the reason may be another then.
	sayAgain = time.Minute
)

// connection says that there is no connection, and why, where that lasts: while there is none nothing is asked for that
// would fail. One that is closed ends the run: without room no request tells.
func (t *trouble) connection(ctx context.Context) {
	now := time.Now()
	switch {
	case t.nc.IsConnected():
		t.away, t.said = time.Time{}, time.Time{}
	case t.nc.IsClosed():
		t.stop(t.limits.cannotFetch(withReason(nats.ErrConnectionClosed, t.nc)))
	case t.away.IsZero():
		t.away = now
	case now.Sub(t.away) >= awayFor && now.Sub(t.said) >= sayAgain:
		t.log.WarnContext(ctx, "natsjs: no connection to the server; trying again",
			"error", withReason(nats.ErrDisconnected, t.nc))
		t.said, t.pause = now, max(t.pause, minPause) // its end is said, too
		t.failed = time.Time{}                        // what fails after it has another reason
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
	if r.err == nil && !r.answered && r.got == 0 {
		r.err = withRefusal(errUnanswered, t.nc)
	}
	switch {
	case r.err == nil && r.got == 0 && t.pause > 0 && time.Now().Before(t.until):
		return // it was asked for before the trouble, and says nothing about its end
	case r.err == nil:
		if t.pause > 0 {
			t.log.InfoContext(ctx, "natsjs: messages can be fetched again")
		}
		t.pause, t.failed = 0, time.Time{}
		t.watcher.missed(nil)
		return
	case t.nc.IsClosed(), errors.Is(r.err, nats.ErrConnectionClosed), errors.Is(r.err, nats.ErrConnectionDraining):
		t.stop(t.limits.cannotFetch(withReason(r.err, t.nc)))
		return
	}
	if now := time.Now(); now.Sub(t.failed) >= sayAgain {
		t.failed = now
		t.log.WarnContext(ctx, "natsjs: messages cannot be fetched; trying again", "error", r.err)
	}
	t.pause = min(max(2*t.pause, minPause), maxPause)
	pause := t.pause
	if t.nc.IsConnected() && t.diagnose(ctx) {
		pause = min(pause, goneFor/4)
	}
	t.until = time.Now().Add(pause)
}

func (l limits) cannotFetch(err error) error {
	return fmt.Errorf("natsjs: nothing can be fetched from %s: %w", l.name(), err)
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

// fetchAgain is fetch after trouble. A leader that has lost its majority takes up to 20 s to notice, and until then
// counts, for each request, deliveries of messages that it does not send: it is not asked. Where nobody says how it is,
// the request does no harm, and may be what is answered first.
func (f *fetcher) fetchAgain(ctx, work context.Context, n int) fetched {
	info, err := f.watcher.look(ctx, 500*time.Millisecond)
	if ctx.Err() != nil || err == nil && alone(info.Cluster) {
		return fetched{asked: n, answered: true, err: errAlone}
	}
	return f.fetch(work, n)
}

// heardWithin is how long a leader may have heard nothing of a replica that is well: it asks each after a second or
// two.
const heardWithin = 2 * time.Second

// alone reports whether a leader hears of too few replicas to make a majority with them. A replica that has said
// nothing since it leads has a zero, and counts as heard: better asked once too often than never again.
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
