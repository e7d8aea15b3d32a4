package natsjs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/isnil"
)

// limits are the settings of a consumer that a run needs.
type limits struct {
	stream, consumer string
	log              *slog.Logger // which names them

	maxInFlight int
	batch       int           // of one request
	expires     time.Duration // of one request
	progress    time.Duration // how often to say that messages are in progress
	maxDeliver  int           // zero: unlimited
	reserve     int           // of them, for crashes and shutdowns
	delayed     int           // how many delayed naks may be outstanding before messages are kept
	fetches     int           // how many requests may be outstanding
	created     time.Time
	config      jetstream.ConsumerConfig
	nextSubject string // where messages are asked for

	queue     *jetstream.StreamConfig // a work-queue stream to which dead letters may go; nil: they go to none
	deadTopic string                  // their topic
}

const (
	// minAckWait keeps an in-progress ack that is late by some hundred milliseconds from being too late.
	minAckWait = 500 * time.Millisecond

	// ticksPerAckWait: the server hears of a message at the latest after two ticks, when half of AckWait is left.
	ticksPerAckWait = 4
)

// check looks at the consumer of a topic, its stream and where dead letters go.
func (e *engine) check(ctx context.Context, topic string) (jetstream.Consumer, limits, error) {
	cons, err := e.consumer(ctx, topic)
	if err == nil && isnil.Nil(cons) {
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, limits{}, fmt.Errorf("natsjs: consumer of topic %q: %w", topic, err)
	}
	info, err := e.info(ctx, cons)
	if err != nil {
		return nil, limits{}, err
	}
	l, err := e.config.limits(info, e.once.Policy())
	if err != nil {
		return nil, limits{}, err
	}
	l.nextSubject = api(e.js) + "CONSUMER.MSG.NEXT." + l.stream + "." + l.consumer
	if err := refusal(ctx, e.js.Conn(), l.nextSubject, probeNext); err != nil {
		return nil, limits{}, l.noRight(l.nextSubject, err)
	}
	if err := e.sees(ctx, l); err != nil {
		return nil, limits{}, err
	}
	stream := e.checkStream(ctx, l, info.AckFloor.Stream)
	e.warn(ctx, l, info, stream)
	err = e.checkDeadLetters(ctx, &l, stream)
	return cons, l, err
}

// warn logs what is unwise about a consumer. A nil stream is not known.
func (e *engine) warn(ctx context.Context, l limits, info *jetstream.ConsumerInfo, stream *jetstream.StreamConfig) {
	router := e.config.Handler == ""
	if idle := l.config.InactiveThreshold; idle > 0 {
		l.log.WarnContext(ctx, "natsjs: the server deletes the consumer, and forgets what was acknowledged, when "+
			"nobody asks for messages for so long: make it Durable, without an InactiveThreshold",
			"inactiveThreshold", idle)
	}
	if info.Paused {
		l.log.WarnContext(ctx, "natsjs: the consumer is paused: the server delivers nothing until it is resumed, or "+
			"its time has come", "remaining", info.PauseRemaining)
	}
	if l.config.HeadersOnly {
		l.log.WarnContext(ctx, "natsjs: the consumer has HeadersOnly: handlers get no payloads, and dead letters have "+
			"none; a work-queue stream deletes them with their messages")
	}
	if l.config.MemoryStorage && (stream == nil || stream.Storage != jetstream.MemoryStorage) {
		l.log.WarnContext(ctx, "natsjs: the consumer has MemoryStorage: a restart of its server forgets what was "+
			"acknowledged, and messages whose outcomes may be forgotten come again; make it without")
	}
	if router && l.maxDeliver > 0 {
		l.log.WarnContext(ctx, "natsjs: the consumer has a MaxDeliver: a message that a Router has not taken when it "+
			"stops loses a delivery; set it to -1", "maxDeliver", l.maxDeliver)
	}
	if dead, _ := e.once.DeadLetters(); !router && dead == nil && !e.once.Policy().Shadow {
		l.log.WarnContext(ctx, "natsjs: no consumer.Config.DeadLetters: messages that fail for good, have no usable "+
			"ID or other content under a known ID are terminated, and only this log has them; a work-queue stream "+
			"deletes them")
	}
}

// sees returns an error if the engine's JetStream, which asks for the messages, does not see the consumer that was
// looked at. A consumer of another domain or account would not answer, or its namesake here would.
func (e *engine) sees(ctx context.Context, l limits) error {
	cons, err := e.js.Consumer(ctx, l.stream, l.consumer)
	switch {
	case errors.Is(err, nats.ErrNoResponders), missing(err), err == nil &&
		!cons.CachedInfo().Created.Equal(l.created):
		return setupError(err, l.name(),
			"is not one of the JetStream given: take the consumer from the same one, of its domain and account")
	case err != nil:
		return fmt.Errorf("natsjs: %s cannot be looked at: %w", l.name(), err)
	}
	return nil
}

// info asks the server for a consumer.
func (e *engine) info(ctx context.Context, cons jetstream.Consumer) (*jetstream.ConsumerInfo, error) {
	var l limits
	if known := cons.CachedInfo(); known != nil {
		l.stream, l.consumer = known.Stream, known.Name
		subject := api(e.js) + "CONSUMER.INFO." + l.stream + "." + l.consumer
		if err := refusal(ctx, e.js.Conn(), subject, probeInfo); err != nil {
			return nil, l.noRight(subject, err)
		}
	}
	before := e.js.Conn().LastError()
	info, err := cons.Info(ctx)
	if err == nil {
		return info, nil
	}
	if refused := newRefusal(e.js.Conn(), before); refused != nil { // of the answer's subject, for example
		err = errors.Join(err, refused)
	}
	if missing(err) {
		return nil, setupError(err, l.name(), "is missing: create it")
	}
	return nil, fmt.Errorf("natsjs: %s cannot be looked at: %w", l.name(), err)
}

// api is the beginning of the subjects of requests to JetStream.
func api(js jetstream.JetStream) string {
	switch o := js.Options(); {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// limits compares a consumer with a config and a policy.
func (c Config) limits(info *jetstream.ConsumerInfo, policy oncemill.Policy) (limits, error) {
	consumer := info.Config
	ackWait := consumer.AckWait
	if len(consumer.BackOff) > 0 {
		ackWait = slices.Min(consumer.BackOff)
	}
	l := limits{
		stream: info.Stream, consumer: info.Name, created: info.Created, config: consumer,
		log:         c.Logger.With("stream", info.Stream, "consumer", info.Name),
		maxInFlight: cmp.Or(c.MaxInFlight, atMost(defaultMaxInFlight, consumer.MaxAckPending)),
		expires:     atMost(fetchWait, consumer.MaxRequestExpires),
		progress:    ackWait / ticksPerAckWait,
		maxDeliver:  max(consumer.MaxDeliver, 0),
		reserve:     policy.MaxAttempts,
		delayed:     cmp.Or(max(consumer.MaxAckPending, 0)/2, maxDelayed),
		fetches:     atMost(maxFetches, consumer.MaxWaiting),
	}
	l.batch = atMost(l.maxInFlight, consumer.MaxRequestBatch)
	if field, problem := l.problem(ackWait); field != "" {
		return limits{}, l.misset(field, problem)
	}
	return l, nil
}

// atMost returns n, or a limit that is less. A limit below 1 is none.
func atMost[T int | time.Duration](n, limit T) T {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// maxDelayed bounds delayed naks where the consumer does not: each is a delivery more for the server to remember.
const maxDelayed = 1000

// problem says what has to be set otherwise.
func (l limits) problem(ackWait time.Duration) (field, problem string) {
	switch consumer := l.config; {
	case consumer.DeliverSubject != "":
		return "DeliverSubject", fmt.Sprintf("is %q, which makes it a push consumer: make a pull consumer, without "+
			"DeliverSubject", consumer.DeliverSubject)
	case consumer.AckPolicy != jetstream.AckExplicitPolicy:
		return "AckPolicy", fmt.Sprintf("is %v: set it to AckExplicit, so that each message is acknowledged by itself",
			consumer.AckPolicy)
	case len(consumer.PriorityGroups) > 0:
		return "PriorityGroups", fmt.Sprintf("is %q: leave it out, groups are not asked for", consumer.PriorityGroups)
	case consumer.ReplayPolicy != jetstream.ReplayInstantPolicy:
		return "ReplayPolicy", fmt.Sprintf("is %v: make the consumer with instant, or the server holds "+
			"messages back for longer than the worker waits", consumer.ReplayPolicy)
	case ackWait < minAckWait:
		field := "AckWait"
		if len(consumer.BackOff) > 0 {
			field = "BackOff"
		}
		return field, fmt.Sprintf("has the server wait %v for an ack: set at least %v, so that messages in progress "+
			"can be reported in time", ackWait, minAckWait)
	case l.maxDeliver > 0 && l.maxDeliver <= l.reserve:
		return "MaxDeliver", fmt.Sprintf("is %d although Policy.MaxAttempts is %d: set it to -1, or to more than %d, "+
			"or the server gives messages up before there is an outcome", l.maxDeliver, l.reserve, l.reserve)
	case consumer.MaxAckPending > 0 && l.maxInFlight > consumer.MaxAckPending:
		return "MaxAckPending", fmt.Sprintf("is %d although Config.MaxInFlight is %d: set it to at least %[2]d, or "+
			"Config.MaxInFlight to at most %[1]d", consumer.MaxAckPending, l.maxInFlight)
	}
	return "", ""
}

// checkStream warns of a stream that keeps messages longer than their outcomes are remembered. It logs which messages
// the stream has deleted before the consumer was done with them, if it has acknowledged all up to done. It returns the
// stream's configuration, or nil if it cannot look.
func (e *engine) checkStream(ctx context.Context, l limits, done uint64) *jetstream.StreamConfig {
	err := refusal(ctx, e.js.Conn(), api(e.js)+"STREAM.INFO."+l.stream, probeInfo)
	var stream jetstream.Stream
	if err == nil {
		stream, err = e.js.Stream(ctx, l.stream)
	}
	if err != nil {
		l.log.WarnContext(ctx, "natsjs: the stream cannot be looked at, so nobody compares its MaxAge with "+
			"Policy.Window", "error", err)
		return nil
	}
	config, first, window := stream.CachedInfo().Config, stream.CachedInfo().State.FirstSeq, e.once.Policy().Window
	if done+1 < first && l.losesWhatIsDeleted(&config) {
		l.log.ErrorContext(ctx,
			"natsjs: the stream has deleted messages before the consumer was done with them: nobody gets them; "+
				"publish them again, and raise what bounds the stream",
			"first", done+1, "last", first-1, "maxAge", config.MaxAge, "maxMsgs", config.MaxMsgs, "maxBytes",
			config.MaxBytes)
	}
	if config.Retention == jetstream.LimitsPolicy && (config.MaxAge == 0 || config.MaxAge > window) {
		l.log.WarnContext(ctx,
			"natsjs: the stream keeps messages longer than Policy.Window remembers outcomes: a replay after that "+
				"runs handlers again; set MaxAge to at most the window, or a longer window",
			"maxAge", config.MaxAge, "window", window)
	}
	return &config
}

// losesWhatIsDeleted reports whether messages deleted at the stream's beginning were certainly this consumer's. With
// filters they may be others'. A consumer of the last of each subject wants no older ones. Under a limit for each
// subject newer messages replace them, and a mirror begins where it likes.
func (l limits) losesWhatIsDeleted(stream *jetstream.StreamConfig) bool {
	return stream.Retention == jetstream.LimitsPolicy && stream.Mirror == nil && stream.MaxMsgsPerSubject <= 0 &&
		l.config.DeliverPolicy != jetstream.DeliverLastPerSubjectPolicy && l.config.FilterSubject == "" &&
		len(l.config.FilterSubjects) == 0
}
