package natsjs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/natswire"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// PublisherConfig configures a Publisher. The zero value is usable.
type PublisherConfig struct {
	// AckTimeout is how long a call waits for acknowledgements when its last message is sent, and for room below
	// MaxPending before that. A message whose acknowledgement does not come in time is reported as unknown. Zero: 5 s.
	AckTimeout time.Duration

	// MaxPending is how many messages may wait for their acknowledgement at once, over all calls. Zero: 1,000.
	MaxPending int

	// Logger gets a warning for each message that a stream took for a duplicate although no relay was repeating it. It
	// also gets one for a connection that will give up reconnecting. Nil: slog.Default().
	Logger *slog.Logger

	// Telemetry says where traces and metrics go. Zero: OpenTelemetry's global providers and propagator. The relay of
	// an outbox has telemetry of its own for its messages.
	Telemetry oncemill.Telemetry
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	if c.AckTimeout == 0 {
		c.AckTimeout = 5 * time.Second
	}
	if c.MaxPending == 0 {
		c.MaxPending = 1000
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = telemetry.Logger(c.Logger)
	return c
}

func (c PublisherConfig) validate() error {
	switch {
	case c.AckTimeout < time.Millisecond:
		return fmt.Errorf("natsjs: PublisherConfig.AckTimeout is %v, want at least 1ms, or zero", c.AckTimeout)
	case c.MaxPending < 1:
		return fmt.Errorf("natsjs: PublisherConfig.MaxPending is %d, want at least 1, or zero", c.MaxPending)
	}
	return nil
}

// A Publisher is a producer.Publisher for JetStream. It is safe for concurrent use. It has nothing to close: it ends
// with the connection. It guarantees:
//
//   - Publish returns nil only when a stream has acknowledged every message. Otherwise a *producer.PublishError says
//     which messages are not acknowledged, and whether they may be in the stream all the same.
//   - Within a stream's duplicate window, a message that is published again is stored once. The header Nats-Msg-Id is a
//     hash of message ID, subject, purpose and generation. So the broker does not swallow dead letters and deliberate
//     replays.
//   - Payload and headers arrive as they were given. A message that NATS cannot carry is refused with an error that
//     names the header or field, and the others of the call are published. Only in oncemill-reason, a dead letter's
//     text for people, control characters become spaces and white space around it is cut off. Publish adds this
//     project's headers and trace context, and leaves oncemill-name out, as producer.Outgoing does.
//   - A message gives no orders to the stream. Every header whose name begins with "Nats-", in any case, is refused: a
//     copied Nats-Expected-Stream would block the message, and Nats-Rollup would purge the stream.
//   - A header oncemill-key that differs from the message's Key is refused, not overwritten.
//
// It does not guarantee
//
//   - order: a message that is published again can land behind later ones;
//   - one copy in the stream: a repeat after the duplicate window (two minutes by default) is stored again, with the
//     same oncemill-id;
//   - that a stream keeps what it acknowledges. A stream with retention interest deletes at once what no consumer
//     wants. Without sync_interval: always, nats-server syncs its files every two minutes, and a machine that loses
//     power loses the rest. A stream with persist_mode async acknowledges before it writes. An outbox can replay;
//   - another connection: see NewPublisher.
type Publisher struct {
	conn       *nats.Conn
	js         jetstream.JetStream // for start-up checks alone
	domain     string              // of the streams that are meant; empty: whichever
	config     PublisherConfig
	room       chan struct{} // holds one for each message that waits for its acknowledgement
	duplicates atomic.Uint64
	telemetry  *telemetry.Sender

	mu   sync.Mutex
	idle []*ackWaiter
}

// NewPublisher returns a Publisher on the connection of js. Its acknowledgement timeout and limit of pending messages
// are its own, not those of js. One Publisher per connection is enough: it subscribes to acknowledgements once for each
// call that runs at the same time, and uses that again.
//
// Connect with nats.MaxReconnects(-1) and nats.IgnoreAuthErrorAbort(). Otherwise nats.go closes the connection for good
// after 60 attempts to reconnect, about two minutes, or when a server refuses its credentials twice. Everything
// published after that is unknown.
func NewPublisher(js jetstream.JetStream, config PublisherConfig) (*Publisher, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if isnil.Nil(js) || js.Conn() == nil {
		return nil, errors.New("natsjs: NewPublisher needs a JetStream with a connection")
	}
	sender, err := telemetry.NewSender(telemetry.Providers(config.Telemetry), telemetry.SystemNATS)
	if err != nil {
		return nil, fmt.Errorf("natsjs: make instruments: %w", err)
	}
	if !js.Conn().Opts.AllowReconnect || js.Conn().Opts.MaxReconnect >= 0 {
		config.Logger.Warn(
			"natsjs: the connection does not try for ever to reconnect, and when it is closed nothing more is " +
				"published: connect with nats.MaxReconnects(-1)")
	}
	return &Publisher{conn: js.Conn(), js: js, domain: js.Options().Domain, config: config,
		room: make(chan struct{}, config.MaxPending), telemetry: sender}, nil
}

// MessagingSystem names JetStream in telemetry.
func (p *Publisher) MessagingSystem() string { return telemetry.SystemNATS }

// Duplicates is how many messages a stream has taken for duplicates although no relay was repeating them
// (producer.HeaderResend). Perhaps somebody published them twice: after a lost acknowledgement, for a repeated request,
// or in another process. If not, two messages have one ID, and one of them is not in the stream.
func (p *Publisher) Duplicates() uint64 { return p.duplicates.Load() }

// Publish sends all messages, in order, and then waits for all acknowledgements, until they are there, their timeout
// ends, or ctx does. Messages must be stamped, or at least have an ID. The Key travels as header oncemill-key.
//
// The error is nil or a *producer.PublishError. A failure is definite if the message itself was refused, here or by a
// stream: it is too big, the stream is sealed, or takes counters only. It is unknown if no stream judged the message.
// The reason may be ctx, a timeout, trouble or limits of the server or account. A connection that is lost or closed
// ends the call at once. Or no stream listens on the subject (jetstream.ErrNoStreamResponse, after half a second of
// retries). A restarting JetStream answers in the same way, and an outbox must not give rows up for that.
//
// If the server stops reading, a write may outlast ctx, until the connection's write deadline (nats.FlusherTimeout, by
// default a minute).
func (p *Publisher) Publish(ctx context.Context, messages ...producer.Message) error {
	if len(messages) == 0 {
		return nil
	}
	l := p.begin(len(messages))
	defer l.end()
	for i, m := range messages {
		o := &l.messages[i]
		within, sending := p.telemetry.Begin(ctx, m.Topic, m.ID, m.Header)
		o.sending = sending
		if o.message, o.err = producer.Outgoing(within, m); o.err != nil {
			o.refused = true
			continue
		}
		l.send(ctx, i)
	}
	l.await(ctx)
	l.repeat(ctx)
	var failures []producer.Failure
	for i := range l.messages {
		o := &l.messages[i]
		unknown, err := p.verdict(ctx, o)
		o.sending.End(ctx, err, unknown)
		if err != nil {
			failures = append(failures, producer.Failure{Index: i, ID: messages[i].ID, Err: err, Unknown: unknown})
		}
	}
	if failures != nil {
		return &producer.PublishError{Failures: failures}
	}
	return nil
}

// verdict returns why a message is not acknowledged, and whether that leaves open what becomes of it.
func (p *Publisher) verdict(ctx context.Context, o *outgoing) (unknown bool, err error) {
	switch {
	case o.err == nil:
		p.landed(ctx, o)
		return false, nil
	case errors.Is(o.err, jetstream.ErrNoStreamResponse):
		return true, fmt.Errorf("no stream answers for subject %q: %w", o.message.Topic, o.err)
	}
	return !o.refused && !refused(o.err), withReason(o.err, p.conn)
}

// landed reports a message that a stream has, also if it took it for a duplicate.
func (p *Publisher) landed(ctx context.Context, o *outgoing) {
	m := &o.message
	p.telemetry.Landed(ctx, o.sending, m.Topic, m.ID, o.ack.stream)
	if !o.ack.duplicate {
		return
	}
	unexpected := m.Header.Get(producer.HeaderResend) == "" // no attempt before it, of a relay, was without an answer
	p.telemetry.Duplicate(ctx, o.sending, m.Topic, m.ID, unexpected)
	if unexpected {
		p.duplicates.Add(1)
		p.config.Logger.WarnContext(telemetry.Located(ctx, m.Header),
			"natsjs: a stream dropped a message as a duplicate: unless it was published before, two messages have "+
				"one ID",
			"stream", o.ack.stream, "sequence", o.ack.sequence, "subject", m.Topic, "id", m.ID)
	}
}

// unsendable reports whether an error of sending says that this message cannot be sent. A client that is reconnecting
// may not know its server yet, and says then that it takes no headers (nats.ErrHeadersNotSupported) and no payload:
// that proves nothing.
func unsendable(size int, limit int64, err error) bool {
	if errors.Is(err, nats.ErrMaxPayload) {
		return limit > 0 && int64(size) > limit
	}
	return errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrBadHeaderMsg)
}

// refused reports whether an error instead of an acknowledgement says that a stream refused the message itself, so that
// it would refuse it again. The class of the error (400 …) does not tell: account limits and too many requests are
// among them, and pass. These are error codes of nats-server (server/errors.json); what is not known here proves
// nothing.
func refused(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamMessageExceedsMaximum,
		10097, // header size exceeds maximum allowed
		10109, // invalid operation on sealed stream
		10169, // message counter increment is missing
		10060, // expected stream does not match
		10070, // wrong last message ID
		jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return true
	}
	return false
}

// An encoder holds a message for NATS: one after the other, in the same memory.
type encoder struct {
	message nats.Msg
	values  []string // one piece of memory for all lists of one value
}

// encode makes its message that of a stamped one, and returns the ID by which a stream deduplicates.
func (e *encoder) encode(m producer.Message) (id string, err error) {
	if e.message.Header == nil {
		e.message.Header = make(nats.Header, len(m.Header)+2)
	}
	clear(e.message.Header)
	e.message.Subject, e.message.Data, e.values = m.Topic, m.Payload, e.values[:0]
	if id, err = natswire.Encode("natsjs", &m, e.set); err != nil {
		return "", err
	}
	e.set(jetstream.MsgIDHeader, id)
	return id, nil
}

func (e *encoder) set(name, value string) {
	e.values = append(e.values, value)
	n := len(e.values)
	e.message.Header[name] = e.values[n-1 : n : n]
}
