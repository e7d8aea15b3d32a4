package franz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// PublisherConfig configures a Publisher. The zero value is usable.
type PublisherConfig struct {
	// AckTimeout is how long to wait for a message's acknowledgement, and for room in the client's buffer before that
	// (kgo.MaxBufferedRecords). A message whose acknowledgement does not come in time is reported as unknown. Zero: 30
	// s.
	AckTimeout time.Duration

	// Telemetry says where traces and metrics go. Zero: OpenTelemetry's global providers and propagator. The relay of
	// an outbox has telemetry of its own for its messages.
	Telemetry oncemill.Telemetry
}

const defaultAckTimeout = 30 * time.Second

func (c PublisherConfig) withDefaults() PublisherConfig {
	c.AckTimeout = cmp.Or(c.AckTimeout, defaultAckTimeout)
	return c
}

func (c PublisherConfig) validate() error {
	if c.AckTimeout < time.Millisecond {
		return fmt.Errorf("franz: PublisherConfig.AckTimeout is %v, want at least 1ms, or zero", c.AckTimeout)
	}
	return nil
}

// PublisherOpts returns options for the client of a Publisher, beside seed brokers and TLS. All replicas in sync
// acknowledge, and the producer is idempotent (kgo's defaults). A record that could not be sent for 30 s is given up,
// if no broker may have it. If a topic takes less than 1 MB (max.message.bytes), add kgo.ProducerBatchMaxBytes with its
// limit. Otherwise batches that are too large are sent again in smaller ones.
func PublisherOpts() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordDeliveryTimeout(defaultAckTimeout),
	}
}

// A Publisher is a producer.Publisher for Kafka. It is safe for concurrent use. It has nothing to close: it ends with
// its client. It guarantees:
//
//   - Publish returns nil only when all replicas in sync have every message. Otherwise a *producer.PublishError says
//     which messages are not acknowledged, and whether they may be in the topic all the same.
//   - If the client repeats a message, that makes no copy and keeps the order of a partition (idempotent producer). If
//     you publish it again, it is another record with the same oncemill-id.
//   - A message that is too large, or that its topic does not take, does not take others along: those that Kafka
//     refused together with it are sent again.
//   - Payload, key and headers arrive as they were given. A message that Kafka cannot carry is refused with an error
//     that names the field. Publish adds this project's headers and trace context, and leaves oncemill-name out, as
//     producer.Outgoing does. The header oncemill-key becomes the record's key, and is refused if it differs from
//     Message.Key.
type Publisher struct {
	cl     *kgo.Client
	config PublisherConfig
	sender *telemetry.Sender
	gate   chan struct{} // holds a token while somebody hands messages to the client
	left   *unanswered   // of earlier calls
}

// NewPublisher returns a Publisher on a client. One a client is enough. The client may consume too, unless the brokers
// have a producer_byte_rate quota for it: kgo then holds back everything else, a group's heartbeats too.
//
// It returns a *dedupstore.SetupError if the client's options weaken what Publish promises. Those are: acknowledgements
// of fewer than all replicas in sync, no idempotence, cancellation of records in flight, transactions, manual flushing,
// and one topic for everything.
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
	case option[bool](cl, kgo.DisableIdempotentWrite), option[bool](cl, kgo.AllowIdempotentProduceCancellation):
		problem = "has kgo.DisableIdempotentWrite or kgo.AllowIdempotentProduceCancellation: leave them out, else " +
			"the client's own retries make copies"
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
		left := &unanswered{
			most:   max(1, option[int64](cl, kgo.MaxBufferedRecords)/unansweredShare),
			topics: map[string]int64{},
		}
		return &Publisher{cl: cl, config: config, sender: sender, gate: make(chan struct{}, 1), left: left}, nil
	}
	return nil, setupError("the publisher's client", "%s", problem)
}

// MessagingSystem names Kafka in telemetry.
func (p *Publisher) MessagingSystem() string { return telemetry.SystemKafka }

// Publish sends all messages, in order, and then waits for all acknowledgements, until they are there, their timeout
// ends, or ctx does. Only messages that are sent again, because one beside them was refused, may lose their place.
// Messages must be stamped, or at least have an ID. A message's Key is the record's key; without one, its header
// oncemill-key is. A nil Payload is a tombstone, an empty one is not.
//
// The error is nil or a *producer.PublishError. A failure is definite if the message itself was refused, here or by the
// broker. It is too large, its topic's name is not one, or the topic takes no such records (a compacted one without
// keys). A broker must also have refused it when it was sent again alone. Others are held up for that, for a tenth of
// AckTimeout at most.
//
// Everything else is unknown, because it can be mended and an outbox must not give rows up for it. That includes a
// topic that does not exist or may not be written to, and a wrong clock (kerr.InvalidTimestamp: by an hour or more,
// with Kafka's defaults). Where the error says so, only a new client goes on (kgo 1.22.2): to a topic that was deleted
// and made again, and after kerr.ClusterAuthorizationFailed.
//
// A message that is unknown because ctx or its timeout ended may still be sent until the client's
// kgo.RecordDeliveryTimeout ends. If a broker may have had it, or one before it in its partition, it may be sent until
// the partition answers, however late. When such messages take a tenth of the client's buffer (kgo.MaxBufferedRecords,
// 50,000), further messages to their topics are unknown at once, until some are answered.
func (p *Publisher) Publish(ctx context.Context, messages ...producer.Message) error {
	all := make([]*produced, len(messages))
	for i, m := range messages {
		all[i] = p.prepare(ctx, m)
	}
	p.deliver(ctx, all)
	var failures []producer.Failure
	for i, f := range all {
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
	record  *kgo.Record // nil: it cannot be sent
	answer  chan error  // nil: none is waited for
	over    atomic.Bool // there is an answer, or nobody waits for it any more
	err     error
	unknown bool
	sending *telemetry.Sending // nil: none
}

func (p *Publisher) prepare(ctx context.Context, m producer.Message) *produced {
	within, sending := p.sender.Begin(ctx, m.Topic, m.ID, m.Header)
	f := &produced{sending: sending}
	if m, f.err = producer.Outgoing(within, m); f.err == nil {
		f.record, f.err = encode(m)
	}
	return f
}

// forward sends a record as it is.
func (p *Publisher) forward(ctx context.Context, record *kgo.Record) error {
	f := &produced{record: record}
	p.deliver(ctx, []*produced{f})
	return f.err
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

// deliver sends messages and waits for their answers, and again for those of messages that were refused together.
func (p *Publisher) deliver(ctx context.Context, all []*produced) {
	within, cancel := context.WithTimeoutCause(ctx, p.config.AckTimeout, errAckTimeout)
	defer cancel()
	p.hand(within, all)
	for _, f := range all {
		p.await(within, f)
	}
	if refused := refusedOf(all); len(refused) > 0 {
		p.sendAgain(ctx, refused)
	}
}

// hand gives messages to the client in their order, without another call's between them. The client's hooks may panic.
func (p *Publisher) hand(ctx context.Context, all []*produced) {
	if p.begin(ctx) {
		defer p.end()
	}
	for _, f := range all {
		p.send(ctx, f)
	}
}

// begin waits until nobody else hands messages to the client, and reports false if ctx ends before. Call end after it
// reported true.
func (p *Publisher) begin(ctx context.Context) bool {
	select {
	case p.gate <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *Publisher) end() { <-p.gate }

// send hands a record to the client with a context that does not end. If that ended, kgo would cancel all records that
// are buffered for the partition, also those of other calls.
func (p *Publisher) send(ctx context.Context, f *produced) {
	switch {
	case f.record == nil:
		return
	case ctx.Err() != nil:
		f.err, f.unknown = cutOff(ctx), true
		return
	case p.left.full(f.record.Topic):
		f.err, f.unknown = errUnanswered, true
		return
	}
	buffering, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	answer := make(chan error, 1)
	f.answer = answer
	f.over.Store(false)
	p.cl.Produce(buffering, f.record, func(_ *kgo.Record, err error) {
		if f.over.Swap(true) {
			p.left.add(f.record.Topic, -1)
		}
		answer <- err
	})
}

// await waits for an answer. An answer that is there counts even if ctx has ended.
func (p *Publisher) await(ctx context.Context, f *produced) {
	if f.answer == nil {
		return
	}
	defer f.sending.Answered()
	select {
	case f.err = <-f.answer:
	default:
		select {
		case f.err = <-f.answer:
		case <-ctx.Done():
			f.err, f.unknown, f.answer = cutOff(ctx), true, nil
			if !f.over.Swap(true) {
				p.left.add(f.record.Topic, 1)
			}
			return
		}
	}
	f.answer, f.unknown = nil, f.err != nil && !refusesMessage(f.err)
	switch {
	case errors.Is(f.err, kerr.UnknownTopicID):
		f.err = fmt.Errorf("%w (was the topic deleted and made again? Then this client publishes to it no more: "+
			"start the process again)", f.err)
	case errors.Is(f.err, kerr.ClusterAuthorizationFailed):
		f.err = fmt.Errorf("%w (if a right was missing when this client asked for its producer ID, it does not ask "+
			"again: give it IDEMPOTENT_WRITE on the cluster or WRITE on a topic, and start the process again)", f.err)
	}
}

// refusedOf returns the messages that were refused, maybe for others in their batches.
func refusedOf(all []*produced) []*produced {
	taken := func(f *produced) bool { return f.record == nil || !refusesBatch(f.err) }
	return slices.DeleteFunc(slices.Clone(all), taken)
}

// sendAgain sends refused messages once more. Others are held up for that, for a while, so that a message in a batch of
// its own shows whether it is to blame. It does not hold them up if the client has some that get no answers.
func (p *Publisher) sendAgain(ctx context.Context, refused []*produced) {
	ctx, stop := context.WithTimeoutCause(ctx, p.config.AckTimeout, errAckTimeout)
	defer stop()
	bounded, cancel := context.WithTimeout(ctx, p.config.AckTimeout/holdUpShare)
	defer cancel()
	alone := func() bool { return false }
	if p.begin(bounded) {
		if p.drained(bounded) {
			alone = func() bool { return bounded.Err() == nil }
		} else {
			cancel()
		}
		letGo := context.AfterFunc(bounded, p.end)
		defer func() {
			if letGo() {
				p.end()
			}
		}()
	}
	p.sendApart(ctx, refused, alone)
}

const (
	unansweredShare = 10 // of the client's buffer
	holdUpShare     = 10 // of AckTimeout
	drainTimeout    = time.Second
)

// drained waits until the client has no more records, and reports false if it has for too long.
func (p *Publisher) drained(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	for p.cl.BufferedProduceRecords() > 0 && ctx.Err() == nil {
		pace.Sleep(ctx, time.Millisecond)
	}
	return ctx.Err() == nil
}

// sendApart sends refused messages in smaller batches, down to batches of one. If they are not alone, that does not say
// which is to blame.
func (p *Publisher) sendApart(ctx context.Context, refused []*produced, alone func() bool) {
	half := len(refused) / 2
	for _, part := range [...][]*produced{refused[:half], refused[half:]} {
		for _, f := range part {
			if f.unknown = true; ctx.Err() == nil {
				r := f.record // which is the client's
				f.record = &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
				p.send(ctx, f)
			}
		}
		for _, f := range part {
			p.await(ctx, f)
			f.unknown = f.err != nil && (f.unknown || !alone())
		}
		if still := refusedOf(part); len(part) > 1 && len(still) > 0 {
			p.sendApart(ctx, still, alone)
		}
	}
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

// encode turns a stamped message into a record.
func encode(m producer.Message) (*kgo.Record, error) {
	if problem := topicProblem(m.Topic); problem != "" {
		return nil, invalid("Message.Topic", problem)
	}
	record := &kgo.Record{Topic: m.Topic, Value: m.Payload}
	key := m.Key
	// of several spellings one: dead letters have those of their messages
	switch value := m.Header.Get(producer.HeaderKey); {
	case key == "":
		key = value
	case value != "" && value != key:
		return nil, invalid("header "+producer.HeaderKey, "differs from Message.Key")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		value := m.Header[name]
		switch {
		case name == "":
			return nil, invalid("a header", "has no name")
		case !utf8.ValidString(name):
			return nil, invalid(fmt.Sprintf("header %.80q", name), "has a name that is not UTF-8")
		case strings.EqualFold(name, producer.HeaderKey):
			continue
		}
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if key != "" {
		record.Key = []byte(key)
	}
	return record, nil
}

const maxTopic = 249 // the longest name that Kafka's brokers accept

// topicProblem says why Kafka has no such topic, or "".
func topicProblem(topic string) string {
	switch {
	case topic == "":
		return "is empty"
	case topic == ".", topic == "..":
		return fmt.Sprintf("is %q, which Kafka does not allow", topic)
	case len(topic) > maxTopic:
		return fmt.Sprintf("has %d bytes, Kafka allows %d", len(topic), maxTopic)
	case strings.ContainsFunc(topic, func(r rune) bool {
		return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune("._-", r)
	}):
		return fmt.Sprintf("is %.80q: Kafka allows letters, digits, dot, underscore and hyphen", topic)
	}
	return ""
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "franz", Field: field, Problem: problem}
}

// unanswered are messages that the client still has although nobody waits for their answers any more, by topic. While a
// partition has no leader, or too few replicas in sync, kgo (1.22.2) gives up no message that a broker may have had,
// and none behind it. Each repetition adds more. Without a bound they would fill the client's buffer, and nothing could
// be published to any topic. Try without this when kgo is raised:
// TestPublisher_TopicThatHangsDoesNotFillTheBufferOfTheOthers fails as long as it is needed.
type unanswered struct {
	most int64

	mu     sync.Mutex
	all    int64
	topics map[string]int64
}

var errUnanswered = errors.New("franz: a tenth of the client's buffer (kgo.MaxBufferedRecords) is full of messages " +
	"that got no answer, some of them to this topic, which gets no more until some are answered; " + whyUnacknowledged)

// full reports whether there are so many that a topic with some of them gets no more.
func (u *unanswered) full(topic string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all >= u.most && u.topics[topic] > 0
}

func (u *unanswered) add(topic string, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all += n
	u.topics[topic] += n
}
