package natsjs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A call is one call of Publish. Its goroutine alone sends, repeats and gives up; answers come from the inbox.
type call struct {
	publisher *Publisher
	token     string             // of the subjects for answers, with the line's
	line      *line              // where answers come; guarded by the inbox
	id        uint64             // within the inbox
	broken    error              // why there can be no answers
	lost      <-chan nats.Status // what breaks the connection: whoever hears it tells all calls
	denied    error              // what the server has refused the connection before
	away      bool               // there was no connection when it began
	news      chan struct{}      // nothing is in flight any more, or something is to be sent again
	timer     *time.Timer
	encoder   encoder

	flights []flight // one for each message; guarded by the inbox while they are in flight
	flying  int      // guarded by the inbox
}

// A flight is a message on its way, or the reason why it is not.
type flight struct {
	message  producer.Message // as it goes on the wire
	brokerID string           // Nats-Msg-Id
	sending  *telemetry.Sending
	unsent   error // why it was never sent
	unknown  bool  // unsent says nothing about the message

	flying bool
	again  bool      // no stream answered: it is sent again when that is due
	tries  int       // how often it was sent again
	due    time.Time // when it is given up, or sent again
	ack    ack
	err    error // instead of ack
	stray  ack   // of a stream of another domain
}

// As in nats.go: JetStream may be choosing a leader.
const (
	retries   = 2
	retryWait = 250 * time.Millisecond
)

func (p *Publisher) begin(messages int) *call {
	c := &call{publisher: p, news: make(chan struct{}, 1), flights: make([]flight, messages),
		away: !p.conn.IsConnected()}
	if err := p.conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) ||
		errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
		c.denied = err
	}
	c.broken = p.inbox.open(p.conn, c)
	return c
}

// end leaves nothing behind. Answers that come later are nobody's. It does not touch the connection, whose lock is held
// while something is written: that may take longer than ctx allows.
func (c *call) end() {
	c.giveUp(context.Canceled) // nothing, unless there was a panic
	c.publisher.inbox.close(c)
	if c.timer != nil {
		c.timer.Stop()
	}
	c.flights = nil
}

func (c *call) send(ctx context.Context, i int, m producer.Message) {
	within, sending := c.publisher.telemetry.Begin(ctx, m.Topic, m.ID, m.Header)
	f := flight{sending: sending}
	f.message, f.unsent = producer.Outgoing(within, m)
	if f.unsent == nil {
		f.brokerID, f.unsent = c.encoder.encode(f.message)
	}
	if f.unsent == nil {
		f.unsent = c.boarding(ctx)
		f.unknown = f.unsent != nil
	}
	if !c.board(i, f) {
		return
	}
	if err := c.transmit(i, &c.encoder.message); err != nil {
		c.unboard(i, err)
	}
}

// boarding waits for room below MaxPending.
func (c *call) boarding(ctx context.Context) error {
	p := c.publisher
	var until time.Time
	for {
		c.watch()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case c.broken != nil:
			return c.broken
		}
		select {
		case p.room <- struct{}{}:
			return nil
		default:
		}
		now := time.Now()
		if until.IsZero() {
			until = now.Add(p.config.AckTimeout)
		}
		if !now.Before(until) {
			return jetstream.ErrTooManyStalledMsgs
		}
		next, _ := c.tend(now)
		select {
		case p.room <- struct{}{}:
			return nil
		case <-c.news:
		case <-c.alarm(now, earlier(next, until)):
		case status, open := <-c.lost:
			c.disconnected(status, open)
		case <-ctx.Done():
		}
	}
}

// board keeps a flight, and says whether it begins.
func (c *call) board(i int, f flight) bool {
	p := c.publisher
	p.inbox.mu.Lock()
	defer p.inbox.mu.Unlock()
	if f.unsent == nil {
		f.flying, f.due = true, time.Now().Add(p.config.AckTimeout)
		c.flying++
	}
	c.flights[i] = f
	return f.flying
}

// unboard ends a flight that did not begin.
func (c *call) unboard(i int, err error) {
	p := c.publisher
	proven := unsendable(c.encoder.message.Size(), p.conn.MaxPayload(), err)
	p.inbox.mu.Lock()
	defer p.inbox.mu.Unlock()
	if f := &c.flights[i]; f.flying {
		c.land(f, ack{}, nil)
		f.unsent, f.unknown = c.unaccepted(err), !proven
	}
}

// unaccepted says of an error of sending that there is no connection, where that is the reason.
func (c *call) unaccepted(err error) error {
	switch {
	case c.away && errors.Is(err, nats.ErrHeadersNotSupported): // so far the client has never reached a server
		return nats.ErrDisconnected
	case errors.Is(err, nats.ErrReconnectBufExceeded): // the buffer is used while there is none
		return fmt.Errorf("%w: %w", err, nats.ErrDisconnected)
	}
	return err
}

// transmit hands a message to the connection, which copies it.
func (c *call) transmit(i int, m *nats.Msg) error {
	m.Reply = replySubject(c.token, i)
	return c.publisher.conn.PublishMsg(m)
}

// await waits until nothing is in flight.
func (c *call) await(ctx context.Context) {
	for {
		now := time.Now()
		next, flying := c.tend(now)
		if !flying {
			return
		}
		select {
		case <-c.news:
		case <-c.alarm(now, next):
		case status, open := <-c.lost:
			c.disconnected(status, open)
		case <-ctx.Done():
			c.giveUp(context.Cause(ctx))
			return
		}
	}
}

// tend gives up what was not answered in time, and sends again what no stream answered. It says when to do so the next
// time, and whether there is anything in flight.
func (c *call) tend(now time.Time) (next time.Time, flying bool) {
	inbox := &c.publisher.inbox
	var again []int
	inbox.mu.Lock()
	for i := range c.flights {
		f := &c.flights[i]
		if !f.flying {
			continue
		}
		if !f.due.After(now) {
			if !f.again {
				c.line.silent = true
				c.land(f, ack{}, c.unheard(f))
				continue
			}
			f.again, f.due = false, now.Add(c.publisher.config.AckTimeout)
			f.tries++
			again = append(again, i)
		}
		next = earlier(next, f.due)
	}
	flying = c.flying > 0
	inbox.mu.Unlock()
	for _, i := range again {
		c.repeat(i)
	}
	return next, flying
}

// unheard says that no acknowledgement came in time. Where a right is missing, to publish or to subscribe to the
// answers, or there are too many subscriptions, the server tells that to the connection only. Whether there is a
// connection now is not asked: its lock is held while something is written.
func (c *call) unheard(f *flight) error {
	switch {
	case f.stray.stream != "":
		return fmt.Errorf("%w: only stream %q of domain %q has the message, want one of domain %q",
			jetstream.ErrAsyncPublishTimeout, f.stray.stream, f.stray.domain, c.publisher.domain)
	case c.away:
		return fmt.Errorf("%w, and when it was sent: %w", jetstream.ErrAsyncPublishTimeout, nats.ErrDisconnected)
	case c.denied != nil:
		return fmt.Errorf("%w, and the server has refused the connection something: %w",
			jetstream.ErrAsyncPublishTimeout, c.denied)
	}
	return jetstream.ErrAsyncPublishTimeout
}

// repeat sends a message that was sent before, so that nothing of what happens to it here says what became of it.
func (c *call) repeat(i int) {
	f := &c.flights[i]
	var e encoder // that of the call may hold the next message already
	_, err := e.encode(f.message)
	if err == nil {
		err = c.transmit(i, &e.message)
	}
	if err == nil {
		return
	}
	c.publisher.inbox.mu.Lock()
	defer c.publisher.inbox.mu.Unlock()
	if f.flying {
		c.land(f, ack{}, err)
	}
}

// watch looks whether the connection broke.
func (c *call) watch() {
	select {
	case status, open := <-c.lost:
		c.disconnected(status, open)
	default:
	}
}

func (c *call) disconnected(status nats.Status, open bool) {
	if !open { // nobody does that, but a closed channel would be read for ever
		c.lost = nil
	}
	inbox := &c.publisher.inbox
	inbox.mu.Lock()
	defer inbox.mu.Unlock()
	inbox.disconnected(status)
}

// giveUp ends all flights.
func (c *call) giveUp(err error) {
	c.publisher.inbox.mu.Lock()
	defer c.publisher.inbox.mu.Unlock()
	if c.flying > 0 {
		c.line.silent = true
	}
	c.landAll(err)
}

// landAll ends all flights. The inbox is locked.
func (c *call) landAll(err error) {
	for i := range c.flights {
		if f := &c.flights[i]; f.flying {
			c.land(f, ack{}, err)
		}
	}
}

// answered takes the answer to a message, or what says that nobody listens on its subject. The inbox is locked.
func (c *call) answered(i int, a ack, err error) {
	if i >= len(c.flights) || !c.flights[i].flying {
		return
	}
	f := &c.flights[i]
	if errors.Is(err, jetstream.ErrNoStreamResponse) && f.tries < retries {
		f.again, f.due = true, time.Now().Add(retryWait)
		c.tell()
		return
	}
	if p := c.publisher; err == nil && p.domain != "" && a.domain != "" && a.domain != p.domain {
		f.stray = a // that of the stream which is meant is still to come
		if !p.known {
			p.doubtful.Store(true)
		}
		return
	}
	c.land(f, a, err)
}

// land ends a flight, and gives its room to another. The inbox is locked.
func (c *call) land(f *flight, a ack, err error) {
	f.flying, f.ack, f.err = false, a, err
	f.sending.Answered()
	<-c.publisher.room
	if c.flying--; c.flying == 0 {
		c.tell()
	}
}

func (c *call) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// alarm rings at a time, which may be zero: never.
func (c *call) alarm(now, at time.Time) <-chan time.Time {
	switch {
	case at.IsZero():
		return nil
	case c.timer == nil:
		c.timer = time.NewTimer(at.Sub(now))
	default:
		c.timer.Reset(at.Sub(now))
	}
	return c.timer.C
}

// earlier returns the earlier of two times, of which a may be zero: never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
