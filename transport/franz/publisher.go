package franz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// PublisherConfig configures a Publisher. The zero value is usable.
type PublisherConfig struct {
	// AckTimeout is how long to wait for a message's acknowledgement, and for room in the client's buffer before that
	// (kgo.MaxBufferedRecords). A message whose acknowledgement does not come in time is reported as unknown. Zero: 30
	// s.
	AckTimeout time.Duration

	// Telemetry says where traces and metrics go. Zero: OpenTelemetry's global providers and propagator. Messages of an
	// outbox's relay are in the relay's.
	Telemetry oncemill.Telemetry
}

const defaultAckTimeout = 30 * time.Second

func (c PublisherConfig) withDefaults() PublisherConfig {
	if c.AckTimeout == 0 {
		c.AckTimeout = defaultAckTimeout
	}
	return c
}

func (c PublisherConfig) validate() error {
	if c.AckTimeout < time.Millisecond {
		return fmt.Errorf("franz: PublisherConfig.AckTimeout is %v, want at least 1ms, or zero", c.AckTimeout)
	}
	return nil
}

// PublisherOpts returns options for the client of a Publisher, beside seed brokers and TLS: acknowledged by all
// replicas in sync, idempotent (kgo's defaults), and given up when they could not be sent for 30 s, if no broker may
// have them. Where a topic takes less than 1 MB (max.message.bytes), add kgo.ProducerBatchMaxBytes with what it takes:
// messages of a batch that is too large are sent again in smaller ones.
func PublisherOpts() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordDeliveryTimeout(defaultAckTimeout),
	}
}

// A Publisher is a producer.Publisher for Kafka. It is safe for concurrent use. It has nothing to close: what it uses
// ends with its client.
type Publisher struct {
	cl     *kgo.Client
	config PublisherConfig
	sender *telemetry.Sender
	alone  sync.RWMutex // held for writing by a message that must be in a batch of its own
	wanted atomic.Int32 // how many such messages there are: the others let them pass
	left   *unanswered  // of earlier calls
}

// NewPublisher returns a Publisher on a client, which may consume too, unless the brokers have a producer_byte_rate
// quota for it: kgo holds back all else then, a group's heartbeats too. One a client is enough. It returns a
// *dedupstore.SetupError if the client was made with options that weaken what Publish promises: other acknowledgements
// than of all replicas in sync, without idempotence or with cancellation of records in flight, transactions, manual
// flushing, or one topic for everything.
func NewPublisher(cl *kgo.Client, config PublisherConfig) (*Publisher, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if cl == nil {
		return nil, setupError("the publisher's client", "is nil")
	}
	var problem string
	switch {
	case cl.OptValue(kgo.RequiredAcks) != any(kgo.AllISRAcks()):
		problem = "has other kgo.RequiredAcks than kgo.AllISRAcks: set these, else a broker that fails takes " +
			"acknowledged messages with it"
	case option[bool](cl, kgo.DisableIdempotentWrite):
		problem = "has kgo.DisableIdempotentWrite: leave it out, else the client's own retries make copies and " +
			"change the order"
	case option[bool](cl, kgo.AllowIdempotentProduceCancellation):
		problem = "has kgo.AllowIdempotentProduceCancellation: leave it out, else the client's own retries make copies"
	case option[string](cl, kgo.TransactionalID) != "":
		problem = "has kgo.TransactionalID: leave it out, else messages are acknowledged before their transaction ends"
	case option[bool](cl, kgo.ManualFlushing):
		problem = "has kgo.ManualFlushing: leave it out, else nothing is sent"
	case option[bool](cl, kgo.DefaultProduceTopicAlways):
		problem = "has kgo.DefaultProduceTopicAlways: leave it out, messages name their topics"
	default:
		sender, err := telemetry.NewSender(telemetry.Providers(config.Telemetry), telemetry.SystemKafka)
		if err != nil {
			return nil, fmt.Errorf("franz: make instruments: %w", err)
		}
		return &Publisher{cl: cl, config: config, sender: sender, left: newUnanswered(cl)}, nil
	}
	return nil, setupError("the publisher's client", "%s", problem)
}

// MessagingSystem names Kafka in telemetry.
func (p *Publisher) MessagingSystem() string { return telemetry.SystemKafka }

// Publish sends all messages, in order (but for those that are sent again because a message beside them was refused),
// and then waits for all acknowledgements, until they are there, their timeout ends, or ctx does. Messages must be
// stamped, or at least have an ID. A message's Key is the record's key; without one, its header oncemill-key is. A nil
// Payload is a tombstone, an empty one is not.
//
// The error is nil or a *producer.PublishError. A failure is not unknown where the message itself was refused, here or
// by the broker: it is too large, its topic's name is not one, or the topic takes no such records (a compacted one
// without keys), and was alone when it was sent again: others are held up for that, for a tenth of AckTimeout at most.
// Everything else is unknown, also when a topic does not exist or may not be written to, or the clock is wrong
// (kerr.InvalidTimestamp: by an hour or more, with Kafka's defaults): that can be mended, and an outbox must not give
// rows up for it. Where the error says so, only a new client goes on (kgo 1.22.2): to a topic that was deleted and made
// again, and after kerr.ClusterAuthorizationFailed. A message that is unknown because ctx or its timeout ended may be
// sent until the client's kgo.RecordDeliveryTimeout ends, and one that a broker may have had, or that stands behind
// such a one in its partition, until the partition answers, however late. When such messages take a tenth of the
// client's buffer (kgo.MaxBufferedRecords, 50,000), their topics get no more until some are answered: what is published
// to them is unknown at once.
func (p *Publisher) Publish(ctx context.Context, messages ...producer.Message) error {
	flights := p.sendAll(ctx, messages)
	var refused []*produced
	for i := range flights {
		if f := &flights[i]; f.refusedInABatch() {
			refused = append(refused, f)
		}
	}
	p.sendApart(ctx, p.endOfAlone(), refused)
	var failures []producer.Failure
	for i, f := range flights {
		f.sending.End(ctx, f.err, f.unknown)
		if f.err != nil {
			failures = append(failures, producer.Failure{Index: i, ID: messages[i].ID, Err: f.err, Unknown: f.unknown})
		}
	}
	if failures != nil {
		return &producer.PublishError{Failures: failures}
	}
	return nil
}

// A produced is a message on its way, and then what became of it.
type produced struct {
	record  *kgo.Record // nil: not sent
	answer  chan error
	wait    *wait // for the answer
	err     error
	unknown bool
	sending *telemetry.Sending
}

const whyUnacknowledged = "if its broker cannot be reached, or slows the client down by a quota, the client's log " +
	"says so (kgo.WithLogger, level info); else its partition may have no leader, or fewer replicas in sync than its " +
	"min.insync.replicas"

var errAckTimeout = errors.New("franz: not acknowledged within PublisherConfig.AckTimeout; " + whyUnacknowledged)

// cutOff returns why a context has ended that somebody waited with. A relay's PublishTimeout ends before an AckTimeout
// that is as long.
func cutOff(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("franz: not acknowledged within the time that the caller gives: %w; %s",
			cause, whyUnacknowledged)
	}
	return cause
}

// sendAll sends messages and waits for their acknowledgements.
func (p *Publisher) sendAll(ctx context.Context, messages []producer.Message) []produced {
	ctx, cancel := context.WithTimeoutCause(ctx, p.config.AckTimeout, errAckTimeout)
	defer cancel()
	flights := make([]produced, len(messages))
	if !p.join(ctx) {
		for i, m := range messages {
			_, sending := p.sender.Begin(ctx, m.Topic, m.ID, m.Header)
			flights[i] = produced{err: cutOff(ctx), unknown: true, sending: sending}
		}
		return flights
	}
	defer p.alone.RUnlock()
	for i, m := range messages {
		flights[i] = p.send(ctx, m)
	}
	for i := range flights {
		if flights[i].answer != nil {
			flights[i].await(ctx)
		}
	}
	return flights
}

// join waits until nobody sends alone, or wants to, who waits for an acknowledgement for as long as its own timeout. It
// reports false if ctx ends before.
func (p *Publisher) join(ctx context.Context) bool {
	for p.wanted.Load() > 0 || !p.alone.TryRLock() {
		if pause(ctx.Done(), stall); ctx.Err() != nil {
			return false
		}
	}
	return true
}

// relay sends a record as it is. It reports whether the record itself was refused, and would be again.
func (p *Publisher) relay(ctx context.Context, record *kgo.Record) (refused bool, err error) {
	f := p.sendRecord(ctx, record)
	if f.refusedInABatch() {
		p.sendAlone(ctx, p.endOfAlone(), []*produced{&f})
	}
	return f.err != nil && !f.unknown, f.err
}

func (p *Publisher) sendRecord(ctx context.Context, record *kgo.Record) produced {
	ctx, cancel := context.WithTimeoutCause(ctx, p.config.AckTimeout, errAckTimeout)
	defer cancel()
	if !p.join(ctx) {
		return produced{err: cutOff(ctx), unknown: true}
	}
	defer p.alone.RUnlock()
	f := p.produce(ctx, &kgo.Record{Topic: record.Topic, Key: record.Key, Value: record.Value, Headers: record.Headers})
	if f.answer != nil {
		f.await(ctx)
	}
	return f
}

// stall is how long to wait for room in the client's buffer before it is asked again.
const stall = 5 * time.Millisecond

func (p *Publisher) send(ctx context.Context, m producer.Message) produced {
	within, sending := p.sender.Begin(ctx, m.Topic, m.ID, m.Header)
	m, err := producer.Outgoing(within, m)
	if err != nil {
		return produced{err: err, sending: sending}
	}
	record, err := encode(m)
	if err != nil {
		return produced{err: err, sending: sending}
	}
	f := p.produce(ctx, record)
	f.sending = sending
	return f
}

// produce hands a record to the client. The client gets a context that does not end: a record that is cancelled there
// takes all that are buffered for its partition along, those of other calls too.
func (p *Publisher) produce(ctx context.Context, record *kgo.Record) produced {
	if ctx.Err() != nil {
		return produced{err: cutOff(ctx), unknown: true}
	}
	if p.left.full(record.Topic) {
		return produced{err: errUnanswered, unknown: true}
	}
	buffering, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	answer, w := make(chan error, 1), &wait{in: p.left, topic: record.Topic}
	p.cl.Produce(buffering, record, func(_ *kgo.Record, err error) {
		w.end()
		answer <- err
	})
	return produced{record: record, answer: answer, wait: w}
}

// await waits for an acknowledgement. What is there already counts even if ctx has ended.
func (f *produced) await(ctx context.Context) {
	defer f.sending.Answered()
	select {
	case f.err = <-f.answer:
	default:
		select {
		case f.err = <-f.answer:
		case <-ctx.Done():
			f.err, f.unknown = cutOff(ctx), true
			f.wait.giveUp()
			return
		}
	}
	f.unknown = f.err != nil && !refusesMessage(f.err)
	switch {
	case errors.Is(f.err, kerr.UnknownTopicID):
		f.err = fmt.Errorf("%w (was the topic deleted and made again? Then this client publishes to it no more: "+
			"start the process again)", f.err)
	case errors.Is(f.err, kerr.ClusterAuthorizationFailed):
		f.err = fmt.Errorf("%w (if a right was missing when this client asked for its producer ID, it does not ask "+
			"again: give it IDEMPOTENT_WRITE on the cluster or WRITE on a topic, and start the process again)", f.err)
	}
}

// refusedInABatch reports whether a record was refused, maybe for another in its batch.
func (f *produced) refusedInABatch() bool {
	return f.record != nil && f.err != nil && refusesBatch(f.err)
}

// sendApart sends records whose batches were refused again, in smaller ones, down to batches of one.
func (p *Publisher) sendApart(ctx context.Context, end time.Time, refused []*produced) {
	if len(refused) == 0 {
		return
	}
	if len(refused) == 1 {
		p.sendAlone(ctx, end, refused)
		return
	}
	half := len(refused) / 2
	for _, part := range [...][]*produced{refused[:half], refused[half:]} {
		p.sendAlone(ctx, end, part)
		if len(part) > 1 {
			p.sendApart(ctx, end, slices.DeleteFunc(part, func(f *produced) bool { return !f.refusedInABatch() }))
		}
	}
}

// endOfAlone is until when a call holds up others to be alone. They may wait for a partition that hangs.
func (p *Publisher) endOfAlone() time.Time {
	const share = 10
	return time.Now().Add(p.config.AckTimeout / share)
}

// sendAlone sends records whose batches were refused once more, without those of others. One record is in a batch of
// its own, which shows whether it is to blame. From end on it has the company of others, and shows nothing.
func (p *Publisher) sendAlone(ctx context.Context, end time.Time, refused []*produced) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.config.AckTimeout, errAckTimeout)
	defer cancel()
	leave := p.holdUp(ctx, end)
	defer leave()
	company := p.crowded(ctx)
	for _, f := range refused {
		again := &kgo.Record{Topic: f.record.Topic, Key: f.record.Key, Value: f.record.Value, Headers: f.record.Headers}
		sent := p.produce(ctx, again)
		f.answer, f.wait, f.err, f.unknown = sent.answer, sent.wait, sent.err, sent.unknown
	}
	for _, f := range refused {
		if f.answer != nil {
			f.await(ctx)
		}
	}
	company = !leave() || company
	for _, f := range refused {
		f.unknown = f.err != nil && (f.unknown || company)
	}
}

// holdUp waits until nobody sends, unless some are unanswered, and keeps others from it until leave is called, or until
// end. leave reports whether there was nobody else in between.
func (p *Publisher) holdUp(ctx context.Context, end time.Time) (leave func() (alone bool)) {
	p.wanted.Add(1)
	for !p.alone.TryLock() {
		if ctx.Err() != nil || p.left.any() || !time.Now().Before(end) { // those would be company anyway
			p.wanted.Add(-1)
			return func() bool { return false }
		}
		pause(ctx.Done(), stall)
	}
	release := sync.OnceFunc(func() {
		p.alone.Unlock()
		p.wanted.Add(-1)
	})
	late := time.AfterFunc(time.Until(end), release)
	return sync.OnceValue(func() bool {
		defer release()
		return late.Stop()
	})
}

// crowded reports whether the client has records of earlier calls that have given up waiting, or of others. It looks
// twice: kgo counts a record until a moment after its answer.
func (p *Publisher) crowded(ctx context.Context) bool {
	if p.cl.BufferedProduceRecords() == 0 {
		return false
	}
	pause(ctx.Done(), stall)
	return p.cl.BufferedProduceRecords() > 0
}

// refusesBatch reports whether an error is about a whole batch, because of one record in it.
func refusesBatch(err error) bool {
	for _, e := range [...]error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.UnsupportedForMessageFormat,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refusesMessage reports whether an error says that the message itself was refused, so that it would be refused again.
func refusesMessage(err error) bool {
	return refusesBatch(err) || errors.Is(err, kerr.InvalidTopicException)
}
