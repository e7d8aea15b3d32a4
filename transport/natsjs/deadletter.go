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
	"github.com/oncemill/oncemill/producer"
)

// A burial is where dead letters go. No topic: nowhere.
type burial struct {
	publisher producer.Publisher
	topic     string
}

// elsewhere reports whether dead letters are known to go to another messaging system.
func (b burial) elsewhere() bool {
	p, says := b.publisher.(interface{ MessagingSystem() string })
	return says && p.MessagingSystem() != "" && p.MessagingSystem() != telemetry.SystemNATS
}

// checkBurial says when dead letters come back to the consumer, or arrive nowhere. The guard knows its own dead letters
// and acknowledges them, which is the end of them in a work-queue stream. A stream of nil is not known.
func (e *engine) checkBurial(ctx context.Context, l limits, stream *jetstream.StreamConfig, dead burial) error {
	if dead.topic == "" || dead.elsewhere() {
		return nil
	}
	log := e.config.Logger.With("stream", l.stream, "consumer", l.consumer, "topic", dead.topic)
	if err := l.digsUp(l.config); err != nil {
		return err
	}
	if field, covered := l.delivers(stream, dead.topic); covered {
		log.ErrorContext(ctx,
			"natsjs: the consumer is given its own dead letters; they are acknowledged and not handled, but those of "+
				"other handlers on the same subject are handled: set filters without that subject, or another "+
				"DeadLetterTopic",
			"field", field)
	}
	p, ours := dead.publisher.(*Publisher)
	if !ours {
		return nil // of another make, which may publish anywhere
	}
	switch err := l.listens(ctx, p.js, dead.topic); {
	case errors.Is(err, errNoInterest):
		log.ErrorContext(ctx,
			"natsjs: the stream of DeadLetterTopic keeps only what a consumer of it wants, and none wants these, or "+
				"only the one that makes them: dead letters are gone at once, and their messages with them; make a "+
				"consumer, or another stream")
	case err != nil:
		log.ErrorContext(ctx,
			"natsjs: no stream is seen to listen on DeadLetterTopic: the first message that has to be dead-lettered "+
				"will hold up others; make the stream", "error", err)
	}
	return nil
}

// digsUp returns an error if a consumer that is set up so has its own dead letters from a work-queue stream, which
// deletes them.
func (l limits) digsUp(config jetstream.ConsumerConfig) error {
	if l.queue == nil {
		return nil
	}
	field, covered := limits{config: config}.delivers(l.queue, l.buried)
	if !covered {
		return nil
	}
	return &ConfigError{Stream: l.stream, Consumer: l.consumer, Field: field,
		Problem: fmt.Sprintf("lets it have its own dead letters (%q), and the work-queue stream deletes what it has "+
			"had: set filters without that subject, or another DeadLetterTopic", l.buried)}
}

// delivers reports whether a consumer delivers a subject, and which field of its configuration says so.
func (l limits) delivers(stream *jetstream.StreamConfig, subject string) (field string, yes bool) {
	field, patterns := "FilterSubjects", l.config.FilterSubjects
	switch {
	case l.config.FilterSubject != "":
		field, patterns = "FilterSubject", []string{l.config.FilterSubject}
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

// lookPatience bounds the look for the stream of dead letters.
const lookPatience = 5 * time.Second

// errNoInterest says that a stream acknowledges messages and keeps none.
var errNoInterest = errors.New("natsjs: a stream with retention interest has no consumer of the subject")

// listens returns an error if no stream is seen to listen on a subject, or to keep what comes. It returns nil also if
// that cannot be found out.
func (l limits) listens(ctx context.Context, js jetstream.JetStream, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, lookPatience) // its connection may be another
	defer cancel()
	if js.Conn().IsClosed() || refusal(ctx, js.Conn(), api(js)+"STREAM.NAMES", probeInfo) != nil {
		return nil
	}
	name, err := js.StreamNameBySubject(ctx, subject)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	case err != nil:
		return nil
	}
	return l.keeps(ctx, js, name, subject)
}

// keeps returns errNoInterest if a stream is seen to have no consumer for whom it keeps messages of a subject. The
// consumer of the limits is none: it acknowledges its own dead letters, and the stream deletes what all who wanted it
// have acknowledged.
func (l limits) keeps(ctx context.Context, js jetstream.JetStream, stream, subject string) error {
	for _, look := range []string{"STREAM.INFO.", "CONSUMER.LIST."} {
		if refusal(ctx, js.Conn(), api(js)+look+stream, probeInfo) != nil {
			return nil //nolint:nilerr // it cannot be found out
		}
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil //nolint:nilerr // it cannot be found out
	}
	config := &s.CachedInfo().Config
	if config.Retention != jetstream.InterestPolicy || config.SubjectTransform != nil {
		return nil
	}
	wanted, all := false, s.ListConsumers(ctx)
	for info := range all.Info() {
		_, yes := limits{config: info.Config}.delivers(config, subject)
		own := info.Name == l.consumer && info.Created.Equal(l.created)
		wanted = wanted || yes && !own
	}
	if wanted || all.Err() != nil {
		return nil //nolint:nilerr // it cannot be found out
	}
	return errNoInterest
}
