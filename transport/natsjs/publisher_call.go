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
	news      chan struct{}      // nothing waits for its answer any more, or something is to be sent again
	encoder   encoder

	messages []outgoing
	waiting  int // messages, for their answers; guarded by the inbox
}

// An outgoing message is on its way, or has a reason why it is not. What comes after waiting is guarded by the inbox
// while the message waits for its answer.
type outgoing struct {
	message  producer.Message // as it goes on the wire
	brokerID string           // Nats-Msg-Id
	sending  *telemetry.Sending
	unsent   error // why it was never sent
	unknown  bool  // unsent says nothing about the message

	waiting   bool
	again     bool      // no stream answered: it is sent again when that is due
	tries     int       // how often it was sent again
	due       time.Time // when it is given up, or sent again
	ack       ack
	err       error // instead of ack
	elsewhere ack   // of a stream of another domain
}

// As in nats.go: JetStream may be choosing a leader.
const (
	retries   = 2
	retryWait = 250 * time.Millisecond
)

func (p *Publisher) begin(messages int) *call {
	c := &call{publisher: p, news: make(chan struct{}, 1), messages: make([]outgoing, messages),
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
	c.abandon(context.Canceled) // nothing, unless there was a panic
	c.publisher.inbox.close(c)
	c.messages = nil
}

// send sends a message, or notes why it is not sent.
func (c *call) send(ctx context.Context, i int, m producer.Message) {
	p, o := c.publisher, &c.messages[i]
	within, sending := p.telemetry.Begin(ctx, m.Topic, m.ID, m.Header)
	o.sending = sending
	if o.message, o.unsent = producer.Outgoing(within, m); o.unsent != nil {
		return
	}
	if o.brokerID, o.unsent = c.encoder.encode(o.message); o.unsent != nil {
		return
	}
	if o.unsent = c.enter(ctx); o.unsent != nil {
		o.unknown = true
		return
	}
	p.inbox.mu.Lock()
	o.waiting, o.due = true, time.Now().Add(p.config.AckTimeout)
	c.waiting++
	p.inbox.mu.Unlock()
	err := c.transmit(i, &c.encoder.message)
	if err == nil {
		return
	}
	proven := unsendable(c.encoder.message.Size(), p.conn.MaxPayload(), err)
	p.inbox.mu.Lock()
	defer p.inbox.mu.Unlock()
	if o.waiting {
		c.over(o, ack{}, nil)
		o.unsent, o.unknown = c.unaccepted(err), !proven
	}
}

// enter waits for room below MaxPending.
func (c *call) enter(ctx context.Context) error {
	p := c.publisher
	var until time.Time
	for {
		select {
		case status, open := <-c.lost:
			c.disconnected(status, open)
		default:
		}
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
		if c.listen(ctx, c.tend(now, until), p.room) {
			return nil
		}
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

// await waits until there is an answer to every message, or none is to be had.
func (c *call) await(ctx context.Context) {
	for {
		next := c.tend(time.Now(), time.Time{})
		if next.IsZero() {
			return
		}
		c.listen(ctx, next, nil)
		if ctx.Err() != nil {
			c.abandon(context.Cause(ctx))
			return
		}
	}
}

// listen waits for something to happen, at most until a time, and for room, if any is given: it reports whether that is
// taken.
func (c *call) listen(ctx context.Context, until time.Time, room chan<- struct{}) bool {
	select {
	case room <- struct{}{}:
		return true
	case <-c.news:
	case <-time.After(time.Until(until)):
	case status, open := <-c.lost:
		c.disconnected(status, open)
	case <-ctx.Done():
	}
	return false
}

// tend gives up what was not answered in time, and sends again what no stream answered. It returns when to do so the
// next time, or until if that is earlier; a zero time is never.
func (c *call) tend(now, until time.Time) time.Time {
	inbox := &c.publisher.inbox
	var again []int
	inbox.mu.Lock()
	for i := range c.messages {
		o := &c.messages[i]
		if !o.waiting {
			continue
		}
		if !o.due.After(now) {
			if !o.again {
				c.line.silent = true
				c.over(o, ack{}, c.unheard(o))
				continue
			}
			o.again, o.due = false, now.Add(c.publisher.config.AckTimeout)
			o.tries++
			again = append(again, i)
		}
		if until.IsZero() || o.due.Before(until) {
			until = o.due
		}
	}
	inbox.mu.Unlock()
	for _, i := range again {
		c.repeat(i)
	}
	return until
}

// unheard says that no acknowledgement came in time. Where a right is missing, to publish or to subscribe to the
// answers, or there are too many subscriptions, the server tells that to the connection only. Whether there is a
// connection now is not asked: its lock is held while something is written.
func (c *call) unheard(o *outgoing) error {
	switch {
	case o.elsewhere.stream != "":
		return fmt.Errorf("%w: only stream %q of domain %q has the message, want one of domain %q",
			jetstream.ErrAsyncPublishTimeout, o.elsewhere.stream, o.elsewhere.domain, c.publisher.domain)
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
	o := &c.messages[i]
	var e encoder // that of the call may hold the next message already
	_, err := e.encode(o.message)
	if err == nil {
		err = c.transmit(i, &e.message)
	}
	if err == nil {
		return
	}
	c.publisher.inbox.mu.Lock()
	defer c.publisher.inbox.mu.Unlock()
	if o.waiting {
		c.over(o, ack{}, err)
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

// abandon gives up all messages that wait for their answers.
func (c *call) abandon(err error) {
	c.publisher.inbox.mu.Lock()
	defer c.publisher.inbox.mu.Unlock()
	if c.waiting > 0 {
		c.line.silent = true
	}
	c.overAll(err)
}

// overAll notes an error of all messages that wait for their answers. The inbox is locked.
func (c *call) overAll(err error) {
	for i := range c.messages {
		if o := &c.messages[i]; o.waiting {
			c.over(o, ack{}, err)
		}
	}
}

// answered takes the answer to a message, or what says that nobody listens on its subject. The inbox is locked.
func (c *call) answered(i int, a ack, err error) {
	if i >= len(c.messages) || !c.messages[i].waiting {
		return
	}
	o, p := &c.messages[i], c.publisher
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse) && o.tries < retries:
		o.again, o.due = true, time.Now().Add(retryWait)
		c.tell()
	case err == nil && p.domain != "" && a.domain != "" && a.domain != p.domain:
		o.elsewhere = a // that of the stream which is meant is still to come
		if !p.known {
			p.doubtful.Store(true)
		}
	default:
		c.over(o, a, err)
	}
}

// over notes the answer to a message, or why there is none, and gives its room to another. The inbox is locked.
func (c *call) over(o *outgoing, a ack, err error) {
	o.waiting, o.ack, o.err = false, a, err
	o.sending.Answered()
	<-c.publisher.room
	if c.waiting--; c.waiting == 0 {
		c.tell()
	}
}

func (c *call) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}
