package franz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// checkBurial looks at where dead letters go. The guard knows those of a handler by its name, which here is the topic: it
// does not know that a worker's handler is the same one for the topic of the dead letters.
func checkBurial(ctx context.Context, cl *kgo.Client, once *consumer.Processor, log *slog.Logger) error {
	publisher, topic := once.DeadLetters()
	if publisher == nil {
		if !once.Policy().Shadow {
			log.WarnContext(ctx, "franz: no consumer.Config.DeadLetters: records that fail for good, have no usable ID or other content under a known ID are passed over, and only this log says which")
		}
		return nil
	}
	if p, says := publisher.(interface{ MessagingSystem() string }); says && p.MessagingSystem() != "" && p.MessagingSystem() != telemetry.SystemKafka {
		return nil
	}
	if consumes(cl, topic) {
		return &SetupError{Problem: fmt.Sprintf("the client consumes topic %q, which is the DeadLetterTopic of its Processor: its handler would run for its own dead letters; "+
			"leave the topic out, and have a worker with another Processor handle dead letters", topic)}
	}
	if p, ours := publisher.(*Publisher); ours {
		switch err := p.look(ctx, topic); {
		case errors.Is(err, kerr.UnknownTopicOrPartition) && !comesLater(p.cl, err):
			log.ErrorContext(ctx, "franz: DeadLetterTopic is not there: the first record that has to be dead-lettered will hold up others; create it", "topic", topic)
		case errors.Is(err, kerr.TopicAuthorizationFailed): // who may write to it may look at it
			log.ErrorContext(ctx, "franz: DeadLetterTopic may not be written to: the first record that has to be dead-lettered will hold up others; allow its publisher's user to Write to it", "topic", topic)
		case err == nil && p.compacts(ctx, topic):
			log.ErrorContext(ctx, "franz: DeadLetterTopic is compacted: of the dead letters with one key only the last is kept, and those without a key are refused and hold up others; set its cleanup.policy to delete", "topic", topic)
		}
	}
	return nil
}

// consumes reports whether a client consumes a topic, or would if it were there.
func consumes(cl *kgo.Client, topic string) bool {
	named := option[map[string]*regexp.Regexp](cl, kgo.ConsumeTopics)
	if !option[bool](cl, kgo.ConsumeRegex) {
		_, yes := named[topic]
		return yes || slices.Contains(cl.GetConsumeTopics(), topic) // those that were added
	}
	matches := func(pattern string) bool {
		re, err := regexp.Compile(pattern)
		return err == nil && re.MatchString(topic)
	}
	return !slices.ContainsFunc(option[[]string](cl, kgo.ConsumeExcludeTopics), matches) &&
		slices.ContainsFunc(slices.Collect(maps.Keys(named)), matches)
}

// lookPatience bounds the look for the topic of dead letters.
const lookPatience = 5 * time.Second

// look returns why a topic is not told, or nil.
func (p *Publisher) look(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, lookPatience) // its brokers may be others
	defer cancel()
	return awaitTopic(ctx, p.cl, kadm.NewClient(p.cl), topic, time.Now().Add(newTopicPatience))
}

// compacts reports whether a topic is known to keep only the last record of a key.
func (p *Publisher) compacts(ctx context.Context, topic string) bool {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	configs, err := kadm.NewClient(p.cl).DescribeTopicConfigs(ctx, topic)
	return err == nil && len(configs) == 1 && strings.Contains(setting(configs[0], "cleanup.policy"), "compact")
}
