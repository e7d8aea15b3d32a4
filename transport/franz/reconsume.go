package franz

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Workarounds for kgo 1.22.2, which tells nobody of three faults of share groups. Try without them when kgo is raised:
// the tests that are named here show whether they are needed.
//
//   - A broker that refuses an acknowledgement names no leader beside that, which it writes as broker 0, and kgo looks
//     for the partition there. Broker 0 knows who leads it. Where no broker has that number, kgo may never fetch the
//     partition again (TestShareWorker_PartitionOfWhichSomethingWasRefusedIsFetchedOn, most times).
//   - kgo asks for ever for a topic that was deleted and made again. Kafka 4.3 answers that with an error of the whole
//     fetch, so that nothing comes of other topics either
//     (TestShareWorker_TopicThatIsMadeAgainIsConsumedAndHoldsUpNoOther).
//   - kgo is silent about a topic that may not be read any more: what refuses its fetches names broker 0, too
//     (TestShareWorker_RightToReadThatIsTakenAwayEndsTheRun).
//
// Topics of the first two are consumed anew, the third ends the run.

// bringBack does so until ctx ends.
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
	topics, err := describe(ctx, l.cl, l.cl.GetConsumeTopics()...)
	if err != nil {
		return // the next look may find it
	}
	for _, topic := range topics {
		if topic.ErrorCode != 0 || topic.Topic == nil || topic.TopicID == (kadm.TopicID{}) {
			continue
		}
		name, id := *topic.Topic, kadm.TopicID(topic.TopicID)
		if !allows(topic, kmsg.ACLOperationRead) {
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
	for rec := range l.locked {
		if slices.Contains(topics, rec.Topic) {
			l.locked[rec] = false // kgo would tell nobody
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
