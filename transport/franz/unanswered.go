package franz

import (
	"errors"
	"sync"
)

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
