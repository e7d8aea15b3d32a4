package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/worker"
	"github.com/oncemill/oncemill/producer"
)

// A message is one that the server has given us. Some of its exported methods are for handlers, and those of settle.go
// for the loop.
type message struct {
	worker.Item
	s        *session
	msg      *nats.Msg
	delivery consumer.Delivery
	sequence uint64             // in the stream
	ordered  bool               // nothing with its order key may overtake it
	scarce   bool               // it has no more deliveries than crashes may need, or a nak's delay would not be kept
	kept     bool               // it waits here for its next try
	decision *consumer.Decision // why it does, or did

	mu       sync.Mutex
	settled  bool
	foreign  bool      // the server would take what is said of it for another message
	touched  time.Time // since when the server waits for us
	buffered bool      // the connection keeps what was said last until it is there again
	refused  error     // what the handler said of it by a nak or a term
}

// newMessage makes a message of what the server has sent.
func (s *session) newMessage(ctx context.Context, msg *nats.Msg, meta *nats.MsgMetadata, now time.Time) *message {
	header, uuid := headers(msg.Header)
	// A stream that was deleted and made again, or lost, counts from one again, and so does one of the same name in
	// another cluster. The time tells them apart.
	position := strconv.AppendUint(make([]byte, 0, 41), meta.Sequence.Stream, 10)
	position = strconv.AppendInt(append(position, '@'), meta.Timestamp.UnixNano(), 10)
	m := &message{s: s, msg: msg, sequence: meta.Sequence.Stream, touched: now, delivery: consumer.Delivery{
		Topic:    msg.Subject,
		Origin:   s.info.stream,
		System:   telemetry.SystemNATS,
		Header:   header,
		UUID:     uuid,
		Position: string(position),
		Count:    int(min(meta.NumDelivered, 1<<31-1)),
		Payload:  msg.Data,
	}}
	m.Message = m
	if s.config.Order != nil {
		m.Key = s.orderKey(ctx, m)
	}
	m.ordered = m.Key != "" || s.info.maxInFlight == 1
	m.scarce = len(s.info.config.BackOff) > 0 // the server may deliver later than a nak's delay says
	if limit := uint64(s.info.maxDeliver); limit > 0 {
		m.Last = meta.NumDelivered >= limit
		m.scarce = m.scarce || meta.NumDelivered+uint64(s.info.reserve) >= limit
	}
	return m
}

// headerUUID is where Watermill's stock NATS marshaler puts a message's UUID.
const headerUUID = "_watermill_message_uuid"

// headers gives each header one value: several are joined, as RFC 9110, section 5.3 does it. The UUID is no header.
func headers(in nats.Header) (out producer.Header, uuid string) {
	out = make(producer.Header, len(in))
	for name, values := range in {
		switch {
		case name == headerUUID && len(values) > 0:
			uuid = values[0]
		case len(values) > 0:
			out[name] = strings.Join(values, ", ")
		}
	}
	return out, uuid
}

// brokenKey is the order key of messages for which Config.Order panics: one after the other is the safe side.
const brokenKey = "natsjs: Config.Order panicked"

func (s *session) orderKey(ctx context.Context, m *message) (key string) {
	defer func() {
		if v := recover(); v != nil {
			key = brokenKey
			s.info.log.ErrorContext(ctx, "natsjs: Config.Order panicked", "subject", m.msg.Subject, "panic", v)
		}
	}()
	return s.config.Order(m)
}

// The answers to a delivery (ADR-15 of NATS).
var (
	sayAck      = []byte("+ACK")
	sayNak      = []byte("-NAK")
	sayProgress = []byte("+WPI")
)

func sayNakAfter(delay time.Duration) []byte {
	return append(strconv.AppendInt([]byte(`-NAK {"delay":`), delay.Nanoseconds(), 10), '}')
}

func sayTerm(reason string) []byte { return []byte("+TERM " + reason) }

// say tells the server something of a message, which is locked.
func (m *message) say(what []byte) error {
	if m.foreign {
		return errForeign
	}
	return m.s.nc.Publish(m.msg.Reply, what)
}

var errForeign = errors.New("natsjs: the consumer was deleted, or has lost what it had counted")

// silence stops the in-progress acks of a message.
func (m *message) silence() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = true
}

// disown stops all acks and naks of a message.
func (m *message) disown() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled, m.foreign = true, true
}

// progress tells the server that a message is worked on, if it has waited for us for a whole tick. While the connection
// is away its buffer, which is not for this alone, gets one word.
func (m *message) progress(now time.Time, tick time.Duration) {
	m.mu.Lock() // so that none is sent after the ack: it would undo a nak's delay
	defer m.mu.Unlock()
	away := !m.s.nc.IsConnected()
	if m.settled || now.Sub(m.touched) < tick || away && m.buffered {
		return
	}
	if m.say(sayProgress) == nil {
		m.touched, m.buffered = now, away
	}
}

var _ jetstream.Msg = (*message)(nil)

// Subject is that of the message.
func (m *message) Subject() string { return m.msg.Subject }

// Reply is where acks go.
func (m *message) Reply() string { return m.msg.Reply }

// Headers are those of the message.
func (m *message) Headers() nats.Header { return m.msg.Header }

// Data is the payload.
func (m *message) Data() []byte { return m.msg.Data }

// Metadata says where the message is in its stream.
func (m *message) Metadata() (*jetstream.MsgMetadata, error) {
	d, err := m.msg.Metadata()
	if err != nil {
		return nil, err
	}
	return &jetstream.MsgMetadata{
		Sequence:     jetstream.SequencePair(d.Sequence),
		NumDelivered: d.NumDelivered,
		NumPending:   d.NumPending,
		Timestamp:    d.Timestamp,
		Stream:       d.Stream,
		Consumer:     d.Consumer,
		Domain:       d.Domain,
	}, nil
}

// InProgress tells the server that the message is worked on.
func (m *message) InProgress() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settled {
		return jetstream.ErrMsgAlreadyAckd
	}
	return m.say(sayProgress)
}

// Ack and DoubleAck change nothing: the worker acknowledges the message when its outcome is stored.
func (*message) Ack() error                      { return nil }
func (*message) DoubleAck(context.Context) error { return nil }

func (m *message) Nak() error                       { return m.refuse(ErrWorkerSettles) }
func (m *message) NakWithDelay(time.Duration) error { return m.refuse(ErrWorkerSettles) }
func (m *message) Term() error                      { return m.refuse(oncemill.Permanent(ErrWorkerSettles)) }
func (m *message) TermWithReason(reason string) error {
	return m.refuse(oncemill.Permanent(fmt.Errorf("%w: %s", ErrWorkerSettles, reason)))
}

// refuse keeps what a handler has said of its message, and returns it: the handler may do so, or ignore it.
func (m *message) refuse(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused = err
	return err
}

// result is how a run of a handler ended that returned err: nil does not take back a nak or a term.
func (m *message) result(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	refused := m.refused
	m.refused = nil
	return cmp.Or(err, refused)
}
