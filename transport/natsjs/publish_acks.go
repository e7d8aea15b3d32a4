package natsjs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// An ackWaiter sends the messages of one call of Publish at a time and gets the answers. Each message has a subject for
// its answer that is never used again, because an answer may come when nobody waits any more. Only take runs outside
// the call's goroutine. The subscription ends with the connection.
type ackWaiter struct {
	publisher *Publisher
	prefix    string // of the subjects for answers, with the dot
	sub       *nats.Subscription
	lost      chan nats.Status // what breaks the connection
	answered  chan struct{}    // nothing waits for its answer any more
	encoder   encoder
	timeout   error        // says that no answer came in time
	broken    error        // why the call can send nothing more
	waiting   atomic.Int64 // messages, for their answers
	silent    atomic.Bool  // an answer did not come in time, and none has come since
	stream    string       // that answered last; for take alone

	mu       sync.Mutex
	first    uint64 // the number of the call's first message
	messages []outgoing
}

// An outgoing message is on its way, or has an error, or an ack. The fields after waiting are guarded by the line while
// the message waits for its answer.
type outgoing struct {
	message  producer.Message // as it goes on the wire
	brokerID string           // Nats-Msg-Id
	sending  *telemetry.Sending

	waiting   bool
	ack       ack
	elsewhere ack // of a stream of another domain
	err       error
	refused   bool // err says that the message itself cannot be sent
}

// As in nats.go: JetStream may be choosing a leader.
const (
	retries   = 2
	retryWait = 250 * time.Millisecond
)

// begin returns a line for a call: an idle one, or a new one. It drops a silent one. A subscription that the server
// refused, because of a right or of its limit, stays refused until the connection is made again, and only the
// connection is told.
func (p *Publisher) begin(messages int) *ackWaiter {
	l, conn := p.takeIdle(), p.conn
	if l != nil && l.silent.Load() {
		conn.RemoveStatusListener(l.lost)
		_ = l.sub.Unsubscribe() // it fails where there is no subscription, or no connection any more
		l = nil
	}
	if l == nil {
		l = &ackWaiter{publisher: p, prefix: conn.NewInbox() + ".", answered: make(chan struct{}, 1)}
		l.lost = conn.StatusChanged(nats.RECONNECTING, nats.CLOSED)
		l.sub, l.broken = conn.Subscribe(l.prefix+"*", l.take)
		l.silent.Store(l.broken != nil)
	}
	for len(l.lost) > 0 { // says nothing about messages that are still to be sent
		<-l.lost
	}
	switch {
	case conn.IsClosed():
		l.broken = nats.ErrConnectionClosed
	case !conn.IsConnected():
		l.broken = nats.ErrDisconnected
	}
	l.timeout = withRefusal(jetstream.ErrAsyncPublishTimeout, conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = make([]outgoing, messages)
	return l
}

func (p *Publisher) takeIdle() *ackWaiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return nil
	}
	l := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return l
}

// end leaves the line to the next call. Answers that come later are ignored. It does not touch the connection, whose
// lock is held during a write that may take longer than the call's context allows.
func (l *ackWaiter) end() {
	l.abandon(context.Canceled) // nothing, unless there was a panic
	l.mu.Lock()
	l.first += uint64(len(l.messages))
	l.messages = nil
	l.mu.Unlock()
	l.broken = nil
	l.publisher.mu.Lock()
	defer l.publisher.mu.Unlock()
	l.publisher.idle = append(l.publisher.idle, l)
}

// send sends a message, or notes why it is not sent.
func (l *ackWaiter) send(ctx context.Context, i int) {
	o, conn, m := &l.messages[i], l.publisher.conn, &l.encoder.message
	if o.brokerID, o.err = l.encoder.encode(o.message); o.err != nil {
		o.refused = true
		return
	}
	if o.err = l.enter(ctx); o.err != nil {
		return
	}
	l.mu.Lock()
	o.waiting = true
	l.waiting.Add(1)
	l.mu.Unlock()
	m.Reply = replySubject(l.prefix, l.first+uint64(i))
	if err := conn.PublishMsg(m); err != nil { // else the connection has copied it
		refused := unsendable(m.Size(), conn.MaxPayload(), err)
		l.mu.Lock()
		defer l.mu.Unlock()
		if o.waiting {
			l.over(o, ack{}, err)
			o.refused = refused
		}
	}
}

// replySubject is where the answer to a message goes.
func replySubject(prefix string, number uint64) string {
	return string(strconv.AppendUint(append(make([]byte, 0, 64), prefix...), number, 36))
}

// enter waits for room below MaxPending.
func (l *ackWaiter) enter(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case l.broken != nil:
		return l.broken
	}
	room := l.publisher.room
	select {
	case room <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(l.publisher.config.AckTimeout)
	defer timer.Stop()
	select {
	case room <- struct{}{}:
		return nil
	case <-timer.C:
		l.broken = jetstream.ErrTooManyStalledMsgs
	case status := <-l.lost:
		l.disconnected(status)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return l.broken
}

// await waits until every message has an answer, or none can come.
func (l *ackWaiter) await(ctx context.Context) {
	timer := time.NewTimer(l.publisher.config.AckTimeout)
	defer timer.Stop()
	for l.waiting.Load() > 0 {
		select {
		case <-l.answered:
		case status := <-l.lost:
			l.disconnected(status)
		case <-timer.C:
			l.abandon(l.timeout)
		case <-ctx.Done():
			l.abandon(context.Cause(ctx))
		}
	}
}

// repeat sends again, some times, what no stream has answered.
func (l *ackWaiter) repeat(ctx context.Context) {
	for range retries {
		var again []int
		for i := range l.messages {
			if errors.Is(l.messages[i].err, jetstream.ErrNoStreamResponse) {
				again = append(again, i)
			}
		}
		if again == nil {
			return
		}
		select {
		case <-time.After(retryWait):
		case <-ctx.Done():
		}
		for _, i := range again {
			l.send(ctx, i)
		}
		l.await(ctx)
	}
}

// disconnected gives up all messages that wait, whose answers were lost with the connection, and sends no more.
func (l *ackWaiter) disconnected(status nats.Status) {
	l.broken = nats.ErrDisconnected
	if status == nats.CLOSED {
		l.broken = nats.ErrConnectionClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.overAll(l.broken)
}

// abandon gives up all messages that wait, which the server may not be able to answer.
func (l *ackWaiter) abandon(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting.Load() > 0 {
		l.silent.Store(true)
	}
	l.overAll(err)
}

// overAll notes an error of all messages that wait for their answers. The line is locked.
func (l *ackWaiter) overAll(err error) {
	for i := range l.messages {
		o := &l.messages[i]
		if !o.waiting {
			continue
		}
		why := err
		if o.elsewhere.stream != "" {
			why = fmt.Errorf("%w: only stream %q of domain %q has the message, want one of domain %q", err,
				o.elsewhere.stream, o.elsewhere.domain, l.publisher.domain)
		}
		l.over(o, ack{}, why)
	}
}

// over notes the answer to a message, or why there is none, and gives its room to another. The line is locked.
func (l *ackWaiter) over(o *outgoing, a ack, err error) {
	o.waiting, o.ack, o.err = false, a, err
	o.sending.Answered()
	<-l.publisher.room
	if l.waiting.Add(-1) == 0 {
		select {
		case l.answered <- struct{}{}:
		default:
		}
	}
}

// take brings an answer to its message, if somebody still waits for it.
func (l *ackWaiter) take(m *nats.Msg) {
	number, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, l.prefix), 36, 64)
	if err != nil {
		return
	}
	a, err := l.read(m)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent.Store(false)
	i := number - l.first
	if i >= uint64(len(l.messages)) || !l.messages[i].waiting {
		return
	}
	o, domain := &l.messages[i], l.publisher.domain
	if err == nil && domain != "" && a.domain != "" && a.domain != domain {
		o.elsewhere = a // that of the stream which is meant is still to come
		return
	}
	l.over(o, a, err)
}

// An ack says where a stream has a message.
type ack struct {
	stream    string
	sequence  uint64
	duplicate bool
	domain    string // empty: it says none
}

// read says what an answer means.
func (l *ackWaiter) read(m *nats.Msg) (ack, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return ack{}, jetstream.ErrNoStreamResponse
	}
	if a, ok := l.readUsual(m.Data); ok {
		return a, nil
	}
	var answer struct {
		*jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &answer); {
	case err != nil:
		return ack{}, jetstream.ErrInvalidJSAck
	case answer.Error != nil:
		return ack{}, answer.Error
	case answer.PubAck == nil || answer.Stream == "":
		return ack{}, jetstream.ErrInvalidJSAck
	}
	return ack{answer.Stream, answer.Sequence, answer.Duplicate, answer.Domain}, nil
}

// readUsual reads what nearly all answers look like: {"stream":"orders","seq":1}. JSON takes as long as all the rest.
func (l *ackWaiter) readUsual(data []byte) (ack, bool) {
	rest, begins := bytes.CutPrefix(data, []byte(`{"stream":"`))
	stream, rest, found := bytes.Cut(rest, []byte(`","seq":`))
	digits, ends := bytes.CutSuffix(rest, []byte("}"))
	if !begins || !found || !ends || len(stream) == 0 || bytes.ContainsAny(stream, `"\`) {
		return ack{}, false
	}
	sequence, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil || digits[0] == '0' {
		return ack{}, false
	}
	if string(stream) != l.stream {
		l.stream = string(stream)
	}
	return ack{stream: l.stream, sequence: sequence}, true
}
