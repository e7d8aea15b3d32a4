package natsjs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// checkDeadLetters refuses dead letters that no stream takes, and logs when they come back to the consumer or nobody
// keeps them. The guard knows its own dead letters and acknowledges them, which deletes them from a work-queue stream.
// A nil stream is not known.
func (e *engine) checkDeadLetters(ctx context.Context, l *limits, stream *jetstream.StreamConfig) error {
	publisher, topic := e.once.DeadLetters()
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
func (l limits) deletesDeadLetters(config jetstream.ConsumerConfig) error {
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
// keeps such a message. The consumer of the limits does not count: it acknowledges its own dead letters, and the stream
// deletes what all that wanted it have acknowledged. If it cannot find out, it reports true.
func (l limits) keeps(ctx context.Context, js jetstream.JetStream, subject string) (kept bool, err error) {
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
