package natsjs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// fetchWait is how long the server keeps a request for messages. The drain waits for it.
	fetchWait = time.Second

	// maxFetches bounds how many requests are outstanding.
	maxFetches = 4

	// smallFetches is how long room for less than two thirds of a window waits for more: to ask for one message at a
	// time would cost more than the messages.
	smallFetches = 2 * time.Millisecond

	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// pull asks for messages until ctx ends, and then returns nil, or until it cannot go on.
func (s *session) pull(ctx, work context.Context) error {
	t := trouble{session: s}
	reconnected := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(reconnected)
	pace := time.NewTimer(0)
	defer pace.Stop()
	for ctx.Err() == nil {
		if s.nc.IsClosed() { // without room no request tells
			return s.limits.cannotFetch(withReason(nats.ErrConnectionClosed, s.nc))
		}
		t.connection(ctx)
		select {
		case <-reconnected:
			s.lookAnew(ctx)
		default:
		}
		n, wait := s.room(time.Now(), t.until)
		if n > 0 {
			fetch := func() fetched { return s.fetch(work, n) }
			if t.pause > 0 {
				fetch = func() fetched { return s.fetchAgain(ctx, work, n) }
			}
			s.fetches.Go(func() { s.ended <- fetch() })
			continue
		}
		pace.Reset(wait)
		select {
		case <-ctx.Done():
		case <-pace.C:
		case <-s.wake:
		case <-reconnected:
			s.lookAnew(ctx)
		case err := <-s.fatal:
			return err
		case f := <-s.ended:
			s.mu.Lock()
			s.credit -= f.asked - f.got
			s.outstanding--
			s.mu.Unlock()
			if err := t.note(ctx, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookAnew looks at the consumer after a reconnect, before anything is asked for: the server may have been restored to
// an earlier time, of which nothing tells any more when as many messages have been delivered again.
func (s *session) lookAnew(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	_, _ = s.info(short) // without an answer, requests tell
}

// room reserves credit for a request, as far as the window has room for it: two thirds of it, or whatever there is if
// nothing is outstanding. Without room it says after which time to look again.
func (s *session) room(now, notBefore time.Time) (n int, wait time.Duration) {
	if wait := notBefore.Sub(now); wait > 0 {
		return 0, wait
	}
	if !s.nc.IsConnected() && !s.nc.IsClosed() {
		return 0, minPause // a request would lie in a buffer, and reach the server when its answers go nowhere
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	free, small := s.free()
	switch {
	case free < 1:
		return 0, fetchWait // somebody wakes us
	case small && s.nextSmall.IsZero():
		s.nextSmall = now.Add(smallFetches)
		return 0, smallFetches
	case small && now.Before(s.nextSmall):
		return 0, s.nextSmall.Sub(now)
	}
	n = min(free, s.limits.batch)
	s.nextSmall = time.Time{}
	s.credit += n
	s.outstanding++
	return n, 0
}

// bytesOnTheWay is how much may be on the way to us. The server cuts a connection for which it holds more than its
// max_pending, 64 MB, and would do so again and again. Its own limit of a request, max_bytes, is none to use: a message
// that is over it goes to the end of those that come again, or is never sent, where a consumer has the last of each
// subject.
const bytesOnTheWay = 4 << 20

// onTheWay is how many messages may be on the way to us. Those to come are taken to be as large as those that have
// come, and the first as large as they can be. The session is locked.
func (s *session) onTheWay() int {
	size := s.size
	if size == 0 {
		size = int(s.nc.MaxPayload())
	}
	return max(1, bytesOnTheWay/max(1, size))
}

// learn remembers how large messages are: the largest, for some hundred others. The session is locked.
func (s *session) learn(size int) {
	s.size = max(size, s.size-s.size/64)
}

// free is how many messages a request may ask for now, and whether that is little. The session is locked.
func (s *session) free() (n int, small bool) {
	onTheWay := s.onTheWay()
	n = min(s.limits.maxInFlight-len(s.flights), onTheWay) - s.credit
	small = 3*n < 2*min(s.limits.maxInFlight, onTheWay)
	// The server takes requests by turns. Only the messages of one request come in their order.
	full := s.outstanding >= s.limits.fetches || s.config.Order != nil && s.outstanding > 0
	if full || small && s.outstanding > 0 {
		return 0, small
	}
	return n, small
}

// errAlone is the trouble with a leader that must not be asked.
var errAlone = errors.New("natsjs: the consumer's leader hears nothing of most of its replicas")

// fetchAgain is fetch after trouble. A leader that has lost its majority takes up to 20 s to notice, and until then
// counts, for each request, deliveries of messages that it does not send: it is not asked. Where nobody says how it is,
// the request does no harm, and may be what is answered first.
func (s *session) fetchAgain(ctx, work context.Context, n int) fetched {
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	info, err := s.info(short)
	if ctx.Err() != nil || err == nil && alone(info.Cluster) {
		return fetched{asked: n, answered: true, err: errAlone}
	}
	return s.fetch(work, n)
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

// trouble is what stands between us and the messages.
type trouble struct {
	session *session
	until   time.Time // no request before
	pause   time.Duration
	gone    time.Time // since when the consumer is not there
	away    time.Time // since when the connection is
	said    time.Time // when that was said last
	failed  time.Time // when it was said last that messages cannot be fetched
}

const (
	// awayFor is how long a connection may be away before that is said: most are back at once.
	awayFor = 3 * time.Second

	// sayAgain is how often it is said while it lasts: the reason may be another then.
	sayAgain = time.Minute
)

// connection says that there is no connection, and why, where that lasts: while there is none nothing is asked for that
// would fail.
func (t *trouble) connection(ctx context.Context) {
	s, now := t.session, time.Now()
	switch {
	case s.nc.IsConnected():
		t.away, t.said = time.Time{}, time.Time{}
	case t.away.IsZero():
		t.away = now
	case now.Sub(t.away) >= awayFor && now.Sub(t.said) >= sayAgain:
		s.log.WarnContext(ctx, "natsjs: no connection to the server; trying again",
			"error", withReason(nats.ErrDisconnected, s.nc))
		t.said, t.pause = now, max(t.pause, minPause) // its end is said, too
		t.failed = time.Time{}                        // what fails after it has another reason
	}
}

// errUnanswered is the trouble of requests that the server does not answer.
var errUnanswered = errors.New("natsjs: the server does not answer")

// goneFor is how long a consumer must be missing to be believed deleted: a server that is starting knows nothing yet.
const goneFor = 3 * time.Second

// note makes up its mind about a request that has ended. It returns an error if there is no going on.
func (t *trouble) note(ctx context.Context, f fetched) error {
	s := t.session
	if f.err == nil && !f.answered && f.got == 0 {
		f.err = withRefusal(errUnanswered, s.nc)
	}
	if f.err == nil && f.got == 0 && t.pause > 0 && time.Now().Before(t.until) {
		return nil // it was asked for before the trouble, and says nothing about its end
	}
	if f.err == nil {
		if t.pause > 0 {
			s.log.InfoContext(ctx, "natsjs: messages can be fetched again")
		}
		t.pause, t.gone, t.failed = 0, time.Time{}, time.Time{}
		return nil
	}
	if s.nc.IsClosed() || errors.Is(f.err, nats.ErrConnectionClosed) || errors.Is(f.err, nats.ErrConnectionDraining) {
		return s.limits.cannotFetch(withReason(f.err, s.nc))
	}
	if now := time.Now(); now.Sub(t.failed) >= sayAgain {
		t.failed = now
		s.log.WarnContext(ctx, "natsjs: messages cannot be fetched; trying again", "error", f.err)
	}
	t.pause = min(max(2*t.pause, minPause), maxPause)
	if s.nc.IsConnected() {
		if err := t.diagnose(ctx); err != nil {
			return err
		}
	}
	t.until = time.Now().Add(t.pause)
	if !t.gone.IsZero() {
		t.until = time.Now().Add(min(t.pause, goneFor/4))
	}
	return nil
}

func (l limits) cannotFetch(err error) error {
	return fmt.Errorf("natsjs: nothing can be fetched from %s: %w", l.name(), err)
}

// diagnose asks the server whether there is a consumer, and a right to fetch from it.
func (t *trouble) diagnose(ctx context.Context) error {
	s := t.session
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := refusal(short, s.nc, s.limits.nextSubject, probeNext); err != nil {
		return s.limits.noRight(s.limits.nextSubject, err)
	}
	info, err := s.info(short)
	if !missing(err) {
		t.gone = time.Time{}
		if err == nil {
			return s.limits.changed(info)
		}
		return nil
	}
	if t.gone.IsZero() {
		t.gone = time.Now()
	}
	if time.Since(t.gone) < goneFor {
		return nil
	}
	return s.deleted(ctx, err)
}

// deleted returns the error of a consumer that is gone. Handlers are waited for, and may take so long that there is
// another stream of its name, which would take their acks for its own messages.
func (s *session) deleted(ctx context.Context, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disown(ctx, "natsjs: the consumer was deleted: what is in flight is not settled, and comes again if there is "+
		"one that has it")
	return setupError(err, s.limits.name(), "was deleted: create it, and run the worker again")
}

// disown has nothing said of what is in flight any more. The session is locked.
func (s *session) disown(ctx context.Context, why string) {
	s.log.WarnContext(ctx, why, "messages", len(s.flights))
	for f := range s.flights {
		f.disown()
	}
}

// blindLooks is how many looks in a row go without an answer before that is said: one may be a leader that is being
// chosen.
const blindLooks = 3

// lookEvery is how often the consumer is looked at while nothing is wrong.
const lookEvery = 30 * time.Second

// watch ends the run when the consumer is changed under it: what the run has learnt of it is not true any more. It also
// does when the consumer is gone, of which no request tells while the window is full.
func (s *session) watch(ctx context.Context, finished <-chan struct{}) {
	ticker := time.NewTicker(s.look)
	defer ticker.Stop()
	blind := 0 // looks in a row that got no answer
	for gone := (time.Time{}); ; {
		select {
		case <-finished:
			return
		case <-ticker.C:
		}
		s.probe.done.Store(false) // a reconnect may have come back with fewer rights
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		info, err := s.info(short)
		cancel()
		if blind++; err == nil || missing(err) || !s.nc.IsConnected() {
			blind = 0
		}
		if blind == blindLooks {
			s.log.WarnContext(ctx, "natsjs: the consumer cannot be looked at, so that nobody sees when it is changed "+
				"or made again; if the server answers otherwise, it has refused the client's subscription to "+
				"answers: connect anew, or start the process again",
				"error", withRefusal(err, s.nc))
		}
		switch {
		case err == nil:
			gone, err = time.Time{}, s.limits.changed(info)
		case !missing(err) || s.asks():
			gone, err = time.Time{}, nil // fetches tell
		case gone.IsZero():
			gone, err = time.Now(), nil
		case time.Since(gone) < goneFor:
			err = nil
		default:
			err = s.deleted(ctx, err)
		}
		if err != nil {
			s.stop(err)
			return
		}
	}
}

// asks reports whether a request is outstanding.
func (s *session) asks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outstanding > 0
}

// info asks the server for the consumer. One that was made again counts from one again, and so does its stream,
// perhaps: what is in flight is not settled any more, for its acks could be taken for those of other messages. So does
// a cluster's whose only node has lost its files, or kept it in memory: it has the old time of creation, and has
// counted less than was seen.
func (s *session) info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	s.mu.Lock()
	delivered := s.delivered
	s.mu.Unlock()
	info, err := s.cons.Info(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if info.Created.Equal(s.created) && info.Delivered.Consumer >= delivered {
		return info, nil
	}
	s.created, s.delivered = info.Created, info.Delivered.Consumer
	s.disown(ctx, "natsjs: the consumer was deleted and made again, or has lost what it had counted: what is in "+
		"flight is not settled, and comes again if it is still in the stream")
	return info, nil
}

// changed returns an error if a consumer is not what the run has seen. Other filters are none, unless they let it have
// what it must not.
func (l limits) changed(info *jetstream.ConsumerInfo) error {
	is, was := info.Config, l.config
	for _, c := range [...]struct {
		field   string
		is, was any
	}{
		{"DeliverSubject", is.DeliverSubject, was.DeliverSubject},
		{"AckPolicy", is.AckPolicy, was.AckPolicy},
		{"HeadersOnly", is.HeadersOnly, was.HeadersOnly},
		{"PriorityGroups", fmt.Sprint(is.PriorityGroups), fmt.Sprint(was.PriorityGroups)},
		{"ReplayPolicy", is.ReplayPolicy, was.ReplayPolicy},
		{"AckWait", is.AckWait, was.AckWait},
		{"BackOff", fmt.Sprint(is.BackOff), fmt.Sprint(was.BackOff)},
		{"MaxDeliver", is.MaxDeliver, was.MaxDeliver},
		{"MaxAckPending", is.MaxAckPending, was.MaxAckPending},
		{"MaxWaiting", is.MaxWaiting, was.MaxWaiting},
		{"MaxRequestBatch", is.MaxRequestBatch, was.MaxRequestBatch},
		{"MaxRequestExpires", is.MaxRequestExpires, was.MaxRequestExpires},
	} {
		if c.is != c.was {
			return l.misset(c.field,
				fmt.Sprintf("was changed from %v to %v while it was in use: run the worker again", c.was, c.is))
		}
	}
	return l.deletesDeadLetters(is)
}

// missing reports whether an error says that the consumer or its stream is not there.
func missing(err error) bool {
	return errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrConsumerDoesNotExist) ||
		errors.Is(err, jetstream.ErrStreamNotFound)
}
