package franz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// checkDeadLetters looks at where dead letters go. The guard knows a handler's dead letters by the handler's name,
// which here is the topic. It does not know that a worker's handler is the same for the topic of the dead letters.
func checkDeadLetters(ctx context.Context, once *consumer.Processor, log *slog.Logger,
	consumes func(string) bool) error {
	publisher, topic := once.DeadLetters()
	if publisher == nil {
		if !once.Policy().Shadow {
			log.WarnContext(ctx, "franz: no consumer.Config.DeadLetters: records that fail for good, have no usable "+
				"ID or other content under a known ID are passed over, and only this log says which")
		}
		return nil
	}
	p, says := publisher.(interface{ MessagingSystem() string })
	if says && p.MessagingSystem() != "" && p.MessagingSystem() != telemetry.SystemKafka {
		return nil
	}
	if consumes(topic) {
		return setupError(theClient, "consumes topic %q, which is the DeadLetterTopic of its Processor: its handler "+
			"would run for its own dead letters; leave the topic out, and have a worker with another Processor "+
			"handle them",
			topic)
	}
	if p, ours := publisher.(*Publisher); ours {
		return p.checkDeadLetterTopic(ctx, topic)
	}
	return nil
}

// lookTimeout bounds the look for the topic of dead letters.
const lookTimeout = 5 * time.Second

// checkDeadLetterTopic refuses a topic that does not take dead letters: the first would hold up all other records. If
// it cannot find out, it accepts the topic.
func (p *Publisher) checkDeadLetterTopic(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout) // its brokers may be others
	defer cancel()
	subject := fmt.Sprintf("DeadLetterTopic %q", topic)
	err := awaitTopic(ctx, p.cl, topic, kmsg.ACLOperationWrite, time.Now().Add(newTopicWait))
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition) && !comesLater(p.cl, err):
		return refused(err, subject, "is not there: create it")
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return refused(err, subject, "may not be written to: allow its publisher's user to Write to it")
	case err != nil:
		return nil
	}
	configs, err := kadm.NewClient(p.cl).DescribeTopicConfigs(ctx, topic)
	if err == nil && slices.ContainsFunc(configs, compacted) {
		return setupError(subject, "is compacted: of the dead letters with one key only the last would be kept, and "+
			"those without a key be refused; set its cleanup.policy to delete")
	}
	return nil
}

// consumes reports whether a client consumes a topic, or would if it were there. Topics of nil are those that a pattern
// finds.
func consumes(cl *kgo.Client, topics []string) func(topic string) bool {
	return func(topic string) bool {
		if !option[bool](cl, kgo.ConsumeRegex) {
			return slices.Contains(topics, topic)
		}
		matches := func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(topic) } // kgo has, too
		named := slices.Collect(maps.Keys(option[map[string]*regexp.Regexp](cl, kgo.ConsumeTopics)))
		return slices.ContainsFunc(named, matches) &&
			!slices.ContainsFunc(option[[]string](cl, kgo.ConsumeExcludeTopics), matches)
	}
}
