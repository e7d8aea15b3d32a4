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
	"github.com/oncemill/oncemill/internal/telemetry"
)

// consumerInfo has the settings of a consumer that a run needs.
type consumerInfo struct {
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
func (e *engine) check(ctx context.Context, topic string) (jetstream.Consumer, consumerInfo, error) {
	cons, err := e.consumer(ctx, topic)
	if err == nil && isnil.Nil(cons) {
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, consumerInfo{}, fmt.Errorf("natsjs: consumer of topic %q: %w", topic, err)
	}
	info, err := e.info(ctx, cons)
	if err != nil {
		return nil, consumerInfo{}, err
	}
	l, err := e.config.consumerInfo(info, e.once.Config().Policy)
	if err != nil {
		return nil, consumerInfo{}, err
	}
	l.nextSubject = api(e.js) + "CONSUMER.MSG.NEXT." + l.stream + "." + l.consumer
	if err := refusal(ctx, e.js.Conn(), l.nextSubject, probeNext); err != nil {
		return nil, consumerInfo{}, l.noRight(l.nextSubject, err)
	}
	if err := e.sameConsumer(ctx, l); err != nil {
		return nil, consumerInfo{}, err
	}
	stream := e.checkStream(ctx, l, info.AckFloor.Stream)
	e.warn(ctx, l, info, stream)
	err = e.checkDeadLetters(ctx, &l, stream)
	return cons, l, err
}

// warn logs what is unwise about a consumer. A nil stream is not known.
func (e *engine) warn(
	ctx context.Context, l consumerInfo, info *jetstream.ConsumerInfo, stream *jetstream.StreamConfig,
) {
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
	if once := e.once.Config(); !router && once.DeadLetters == nil && !once.Policy.Shadow {
		l.log.WarnContext(ctx, "natsjs: no consumer.Config.DeadLetters: messages that fail for good, have no usable "+
			"ID or other content under a known ID are terminated, and only this log has them; a work-queue stream "+
			"deletes them")
	}
}

// sameConsumer returns an error if the engine's JetStream, which asks for the messages, does not see the consumer that
// was looked at. A consumer of another domain or account would not answer, or its namesake here would.
func (e *engine) sameConsumer(ctx context.Context, l consumerInfo) error {
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
	var l consumerInfo
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

// consumerInfo compares a consumer with a config and a policy.
func (c Config) consumerInfo(info *jetstream.ConsumerInfo, policy oncemill.Policy) (consumerInfo, error) {
	consumer := info.Config
	ackWait := consumer.AckWait
	if len(consumer.BackOff) > 0 {
		ackWait = slices.Min(consumer.BackOff)
	}
	l := consumerInfo{
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
		return consumerInfo{}, l.misset(field, problem)
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
func (l consumerInfo) problem(ackWait time.Duration) (field, problem string) {
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
func (e *engine) checkStream(ctx context.Context, l consumerInfo, done uint64) *jetstream.StreamConfig {
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
	config, first := stream.CachedInfo().Config, stream.CachedInfo().State.FirstSeq
	window := e.once.Config().Policy.Window
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
func (l consumerInfo) losesWhatIsDeleted(stream *jetstream.StreamConfig) bool {
	return stream.Retention == jetstream.LimitsPolicy && stream.Mirror == nil && stream.MaxMsgsPerSubject <= 0 &&
		l.config.DeliverPolicy != jetstream.DeliverLastPerSubjectPolicy && l.config.FilterSubject == "" &&
		len(l.config.FilterSubjects) == 0
}

// checkDeadLetters refuses dead letters that no stream takes, and logs when they come back to the consumer or nobody
// keeps them. The guard knows its own dead letters and acknowledges them, which deletes them from a work-queue stream.
// A nil stream is not known.
func (e *engine) checkDeadLetters(ctx context.Context, l *consumerInfo, stream *jetstream.StreamConfig) error {
	once := e.once.Config()
	publisher, topic := once.DeadLetters, once.DeadLetterTopic
	named, ok := publisher.(interface{ MessagingSystem() string })
	elsewhere := ok && named.MessagingSystem() != "" && named.MessagingSystem() != telemetry.SystemNATS
	if topic == "" || elsewhere {
		return nil
	}
	if stream != nil && stream.Retention == jetstream.WorkQueuePolicy {
		l.queue, l.deadTopic = stream, topic
	}
	if err := l.deletesDeadLetters(l.config); err != nil {
		return err
	}
	if field, covered := delivers(&l.config, stream, topic); covered {
		l.log.ErrorContext(ctx,
			"natsjs: the consumer is given its own dead letters; they are acknowledged and not handled, but those of "+
				"other handlers on the same subject are handled: set filters without that subject, or another "+
				"DeadLetterTopic",
			"topic", topic, "field", field)
	}
	p, ours := publisher.(*Publisher)
	if !ours {
		return nil // of another make, which may publish anywhere
	}
	kept, err := l.keeps(ctx, p.js, topic)
	if err != nil {
		return setupError(err, fmt.Sprintf("DeadLetterTopic %q", topic), "is no subject of a stream: make the stream")
	}
	if !kept {
		l.log.ErrorContext(ctx,
			"natsjs: the stream of DeadLetterTopic keeps only what a consumer of it wants, and none wants these, or "+
				"only the one that makes them: dead letters are gone at once, and their messages with them; make a "+
				"consumer, or another stream", "topic", topic)
	}
	return nil
}

// deletesDeadLetters returns an error if a consumer that is set up so has its own dead letters from a work-queue
// stream, which deletes them.
func (l consumerInfo) deletesDeadLetters(config jetstream.ConsumerConfig) error {
	if l.queue == nil {
		return nil
	}
	field, covered := delivers(&config, l.queue, l.deadTopic)
	if !covered {
		return nil
	}
	return l.misset(field, fmt.Sprintf("delivers its own dead letters (%q) to it, and the work-queue stream deletes "+
		"them then: set filters without that subject, or another DeadLetterTopic", l.deadTopic))
}

// delivers reports whether a consumer delivers a subject, and which field of its configuration says so.
func delivers(
	consumer *jetstream.ConsumerConfig, stream *jetstream.StreamConfig, subject string,
) (field string, yes bool) {
	field, patterns := "FilterSubjects", consumer.FilterSubjects
	switch {
	case consumer.FilterSubject != "":
		field, patterns = "FilterSubject", []string{consumer.FilterSubject}
	case len(patterns) == 0 && stream != nil:
		field, patterns = "FilterSubject, which is empty,", stream.Subjects
	}
	listens := stream == nil || slices.ContainsFunc(stream.Subjects, func(p string) bool { return covers(p, subject) })
	return field, listens && slices.ContainsFunc(patterns, func(p string) bool { return covers(p, subject) })
}

// covers reports whether a pattern of NATS matches a subject.
func covers(pattern, subject string) bool {
	for {
		want, patterns, more := strings.Cut(pattern, ".")
		have, rest, on := strings.Cut(subject, ".")
		switch {
		case want == ">":
			return true
		case want != "*" && want != have, more != on:
			return false
		case !more:
			return true
		}
		pattern, subject = patterns, rest
	}
}

// lookTimeout bounds the look for the stream of dead letters.
const lookTimeout = 5 * time.Second

// keeps returns an error if no stream listens on a subject. It reports false if the stream has no consumer for which it
// keeps such a message. That consumer itself does not count: it acknowledges its own dead letters, and the stream
// deletes what all that wanted it have acknowledged. If it cannot find out, it reports true.
func (l consumerInfo) keeps(ctx context.Context, js jetstream.JetStream, subject string) (kept bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout) // its connection may be another
	defer cancel()
	may := func(what string) bool { return refusal(ctx, js.Conn(), api(js)+what, probeInfo) == nil }
	if js.Conn().IsClosed() || !may("STREAM.NAMES") {
		return true, nil
	}
	name, err := js.StreamNameBySubject(ctx, subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, err
	}
	if err != nil || !may("STREAM.INFO."+name) || !may("CONSUMER.LIST."+name) {
		return true, nil
	}
	s, err := js.Stream(ctx, name)
	if err != nil || s.CachedInfo().Config.Retention != jetstream.InterestPolicy {
		return true, nil
	}
	config, all := s.CachedInfo().Config, s.ListConsumers(ctx)
	for info := range all.Info() {
		_, yes := delivers(&info.Config, &config, subject)
		own := info.Name == l.consumer && info.Created.Equal(l.created)
		kept = kept || yes && !own
	}
	return kept || all.Err() != nil || config.SubjectTransform != nil, nil
}
