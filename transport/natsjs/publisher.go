package natsjs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// PublisherConfig configures a Publisher. The zero value is usable.
type PublisherConfig struct {
	// AckTimeout is how long to wait for a message's acknowledgement, and for room below MaxPending before that. A
	// message whose acknowledgement does not come in time is reported as unknown. Zero: 5 s.
	AckTimeout time.Duration

	// MaxPending is how many messages may wait for their acknowledgement at once, over all calls. Zero: 1,000.
	MaxPending int

	// Logger gets a warning for each message that a stream took for a duplicate although it was not sent before. Nil:
	// slog.Default().
	Logger *slog.Logger

	// Telemetry says where traces and metrics go. Zero: OpenTelemetry's global providers and propagator. Messages of an
	// outbox's relay are in the relay's.
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

// A Publisher is a producer.Publisher for JetStream. It is safe for concurrent use. It has nothing to close: what it
// uses ends with the connection.
type Publisher struct {
	js         jetstream.JetStream
	config     PublisherConfig
	unanswered memory
	duplicates atomic.Uint64
	telemetry  *telemetry.Sender
}

// NewPublisher returns a Publisher on the connection of js. Of js it takes nothing else: its acknowledgement timeout and
// limit of pending messages are its own. One Publisher per connection is enough.
func NewPublisher(js jetstream.JetStream, config PublisherConfig) (*Publisher, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if js == nil || js.Conn() == nil {
		return nil, errors.New("natsjs: NewPublisher needs a JetStream with a connection")
	}
	// With a timeout of its own, nats.go forgets messages whose acknowledgement never comes.
	own, err := jetstream.New(js.Conn(),
		jetstream.WithPublishAsyncTimeout(config.AckTimeout), jetstream.WithPublishAsyncMaxPending(config.MaxPending))
	if err != nil {
		return nil, fmt.Errorf("natsjs: %w", err)
	}
	sender, err := telemetry.NewSender(telemetry.Providers(config.Telemetry), telemetry.SystemNATS)
	if err != nil {
		return nil, fmt.Errorf("natsjs: make instruments: %w", err)
	}
	return &Publisher{js: own, config: config, telemetry: sender}, nil
}

// MessagingSystem names JetStream in telemetry.
func (p *Publisher) MessagingSystem() string { return telemetry.SystemNATS }

// Duplicates is how many messages a stream has taken for duplicates although this Publisher was not repeating them
// after a lost acknowledgement. Another process may have sent them before it died. If not, two messages have one ID,
// and one of them is not in the stream.
func (p *Publisher) Duplicates() uint64 { return p.duplicates.Load() }

// Publish sends all messages, in order, and then waits for all acknowledgements, until they are there, their timeout
// ends, or ctx does. Messages must be stamped, or at least have an ID. The Key travels as header oncemill-key.
//
// The error is nil or a *producer.PublishError. A failure is not unknown where the message itself was refused, here or
// by a stream: it is too big, the stream is sealed, or takes counters only. Where no stream judged it, it is unknown:
// because of ctx, a timeout, a connection that is lost or closed, trouble or limits of the server or account, or because
// no stream listens on its subject (jetstream.ErrNoStreamResponse, after half a second of retries). JetStream that is
// restarting answers like a stream that does not exist, and an outbox must not give rows up for that.
func (p *Publisher) Publish(ctx context.Context, messages ...producer.Message) error {
	flights := make([]flight, len(messages))
	for i, m := range messages {
		flights[i] = p.send(ctx, m)
	}
	var failures []producer.Failure
	for i, f := range flights {
		unknown, err := p.await(ctx, f)
		f.sending.End(ctx, err, unknown)
		if err != nil {
			failures = append(failures, producer.Failure{Index: i, ID: messages[i].ID, Err: err, Unknown: unknown})
		}
	}
	if failures != nil {
		return &producer.PublishError{Failures: failures}
	}
	return nil
}

// A flight is a message on its way, or the reason why it is not.
type flight struct {
	future  jetstream.PubAckFuture
	msg     *nats.Msg
	err     error
	unknown bool
	sending *telemetry.Sending
}

// stall is how long nats.go may block for room below MaxPending before ctx is looked at again.
const stall = 20 * time.Millisecond

var stalling = jetstream.WithStallWait(stall)

func (p *Publisher) send(ctx context.Context, m producer.Message) flight {
	within, sending := p.telemetry.Begin(ctx, m.Topic, m.ID, m.Header)
	f := p.launch(ctx, within, m)
	f.sending = sending
	return f
}

// launch sends a message that is stamped within a context of its own.
func (p *Publisher) launch(ctx, within context.Context, m producer.Message) flight {
	m, err := producer.Outgoing(within, m)
	if err != nil {
		return flight{err: err}
	}
	msg, err := encode(m)
	if err != nil {
		return flight{err: err}
	}
	for deadline := time.Now().Add(p.config.AckTimeout); ; {
		if ctx.Err() != nil {
			return flight{err: context.Cause(ctx), unknown: true}
		}
		if p.js.Conn().IsClosed() {
			return flight{err: nats.ErrConnectionClosed, unknown: true}
		}
		future, err := p.js.PublishMsgAsync(msg, stalling)
		if errors.Is(err, jetstream.ErrTooManyStalledMsgs) && time.Now().Before(deadline) {
			continue
		}
		return flight{future: future, msg: msg, err: err, unknown: err != nil && !unsendable(msg.Size(), p.js.Conn().MaxPayload(), err)}
	}
}

// await returns why a message is not acknowledged, and whether that leaves open what becomes of it.
func (p *Publisher) await(ctx context.Context, f flight) (unknown bool, err error) {
	if f.future == nil {
		return f.unknown, f.err
	}
	id := f.msg.Header.Get(jetstream.MsgIDHeader)
	ack, err := outcome(ctx, f.future)
	f.sending.Answered()
	if err == nil {
		p.telemetry.Landed(ctx, f.sending, f.msg.Subject, f.msg.Header.Get(producer.HeaderID), ack.Stream)
	}
	if err == nil && ack.Duplicate {
		p.telemetry.Duplicate(ctx, f.sending, f.msg.Subject, f.msg.Header.Get(producer.HeaderID), !p.unanswered.has(id))
	}
	switch {
	case err == nil && ack.Duplicate && !p.unanswered.has(id):
		p.duplicates.Add(1)
		p.config.Logger.WarnContext(telemetry.Located(ctx, flat(f.msg.Header)), "natsjs: a stream dropped a message as a duplicate; unless another process sent it before, two messages have one ID",
			"stream", ack.Stream, "sequence", ack.Sequence, "subject", f.msg.Subject, "id", f.msg.Header.Get(producer.HeaderID))
	case err != nil && !refused(err):
		p.unanswered.add(id)
		return true, err
	}
	p.unanswered.remove(id)
	return false, err
}

// outcome waits for an acknowledgement. What is there already counts even if ctx has ended.
func outcome(ctx context.Context, f jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-f.Ok():
		return ack, nil
	case err := <-f.Err():
		return nil, err
	default:
	}
	select {
	case ack := <-f.Ok():
		return ack, nil
	case err := <-f.Err():
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// unsendable reports whether an error of sending says that this message cannot be sent. A client that is reconnecting may
// not know its server yet, and says then that it takes no headers (nats.ErrHeadersNotSupported) and no payload: that
// proves nothing.
func unsendable(size int, limit int64, err error) bool {
	if errors.Is(err, nats.ErrMaxPayload) {
		return limit > 0 && int64(size) > limit
	}
	return errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrBadHeaderMsg)
}

// refused reports whether an error instead of an acknowledgement says that a stream refused the message itself, so that
// it would refuse it again. The class of the error (400 …) does not tell: account limits and too many requests are among
// them, and pass. These are error codes of nats-server (server/errors.json); what is not known here proves nothing.
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
