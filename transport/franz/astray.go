package franz

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
)

// A broker that refuses what it is told of a record names no leader of the partition beside that, which it writes as broker 0,
// and kgo 1.22.2 believes it: it looks for the partition there. Broker 0 knows who leads it. But where no broker has that
// number, kgo never fetches the partition again, and tells nobody what became of its records. So the topic is consumed anew.

// bringBack does so whenever something was refused, until ctx ends.
func (l *locks) bringBack(ctx context.Context) {
	for {
		select {
		case <-l.strayed:
			l.consumeAnew(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (l *locks) consumeAnew(ctx context.Context) {
	zero := l.hasBrokerZero(ctx)
	l.acking.Lock()
	defer l.acking.Unlock()
	_ = l.flush(ctx, l.every) // its answers say nothing new
	l.mu.Lock()
	var topics []string
	for topic := range l.astray {
		topics = append(topics, topic)
	}
	clear(l.astray)
	if zero || ctx.Err() != nil {
		topics = nil
	}
	for rec := range l.held {
		if slices.Contains(topics, rec.Topic) {
			l.held[rec] = false // kgo would tell nobody
		}
	}
	l.mu.Unlock()
	if len(topics) == 0 {
		return
	}
	l.log.WarnContext(ctx, "franz: topics are consumed anew, because the client may have lost partitions of them: their records that wait or run are delivered again", "group", l.group, "topics", topics)
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
