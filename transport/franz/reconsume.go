package franz

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A broker that refuses what it is told of a record names no leader of the partition beside that, which it writes as
// broker 0, and kgo 1.22.2 believes it: it looks for the partition there. Broker 0 knows who leads it. But where no
// broker has that number, kgo never fetches the partition again, and tells nobody what became of its records. So the
// topic is consumed anew.

// The same goes for a topic that was deleted and made again: kgo asks for the old one for ever, to which Kafka 4.3
// answers with an error of the whole fetch, so that nothing comes of other topics either, and nobody is told.

// And a topic that may not be read any more: what refuses its fetches names broker 0, too, and neither that nor its end
// is told.

// bringBack does so whenever something was refused, or a topic was made again, until ctx ends.
func (l *locks) bringBack(ctx context.Context) {
	ids := topicIDs{consumed: map[string]kadm.TopicID{}, seen: map[string]kadm.TopicID{}}
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	l.look(ctx, ids)
	for {
		select {
		case <-l.lost:
			l.consumeAnew(ctx)
		case <-tick.C:
			l.look(ctx, ids)
		case <-ctx.Done():
			return
		}
	}
}

// topicIDs are those of topics by name: of which is consumed, and which was seen last.
type topicIDs struct{ consumed, seen map[string]kadm.TopicID }

// look finds topics that were made again, and ends the run for those that may not be read. One that was made again has
// to be seen twice: by then all brokers should know of it, of which kgo may ask another.
func (l *locks) look(ctx context.Context, ids topicIDs) {
	ctx, cancel := context.WithTimeout(ctx, l.every)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range l.cl.GetConsumeTopics() {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return // the next look may find it
	}
	for _, topic := range resp.Topics {
		if topic.ErrorCode != 0 || topic.Topic == nil || topic.TopicID == (kadm.TopicID{}) {
			continue
		}
		name, id := *topic.Topic, kadm.TopicID(topic.TopicID)
		if may := kadm.DecodeACLOperations(topic.AuthorizedOperations); len(may) > 0 &&
			!slices.Contains(may, kmsg.ACLOperationRead) {
			l.fail(refusal(l.group, name, kerr.TopicAuthorizationFailed))
		}
		consumed, known := ids.consumed[name]
		again := ids.seen[name] == id
		ids.seen[name] = id
		if known && (consumed == id || !again) {
			continue
		}
		ids.consumed[name] = id
		if known {
			l.log.WarnContext(ctx,
				"franz: a topic was deleted and made again, and its namesake is consumed from now on",
				"group", l.group, "topic", name)
			l.mu.Lock()
			l.markAnew(name, true)
			l.mu.Unlock()
		}
	}
}

// markAnew has a topic consumed anew: one that was made again in any case, others where there is no broker 0. The locks
// are locked.
func (l *locks) markAnew(topic string, madeAgain bool) {
	l.anew[topic] = l.anew[topic] || madeAgain
	select {
	case l.lost <- struct{}{}:
	default:
	}
}

func (l *locks) consumeAnew(ctx context.Context) {
	zero := l.hasBrokerZero(ctx)
	l.acking.Lock()
	defer l.acking.Unlock()
	_ = l.flush(ctx, l.every) // its answers say nothing new
	l.mu.Lock()
	var topics []string
	for topic, madeAgain := range l.anew {
		if ctx.Err() == nil && (madeAgain || !zero) {
			topics = append(topics, topic)
		}
	}
	clear(l.anew)
	for rec := range l.held {
		if slices.Contains(topics, rec.Topic) {
			l.held[rec] = false // kgo would tell nobody
		}
	}
	l.mu.Unlock()
	if len(topics) == 0 {
		return
	}
	l.log.WarnContext(ctx,
		"franz: topics are consumed anew, because the client may have lost partitions of them: their records that "+
			"wait or run are delivered again",
		"group", l.group, "topics", topics)
	l.cl.PurgeTopicsFromConsuming(topics...)
	l.cl.AddConsumeTopics(topics...)
}

// hasBrokerZero reports false also if that cannot be found out.
func (l *locks) hasBrokerZero(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, l.every)
	defer cancel()
	brokers, err := kadm.NewClient(l.cl).ListBrokers(ctx)
	return err == nil && slices.Contains(brokers.NodeIDs(), 0)
}
