package franz

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"
)

// unanswered are messages that the client still has though nobody waits for their answers any more, by topic. kgo
// (1.22.2) gives up none that a broker may have had, and none behind such a one in its partition, for as long as the
// partition has no leader, or too few replicas in sync. Who publishes them again adds more each time: without a bound
// they would fill the client's buffer, and nothing could be published to any topic. Try without when kgo is raised:
// TestPublisher_TopicThatHangsDoesNotFillTheBufferOfTheOthers fails as long as this is needed.
type unanswered struct {
	most int64
	all  atomic.Int64 // which each message looks at

	mu     sync.Mutex
	topics map[string]int
}

var errUnanswered = errors.New("franz: a tenth of the client's buffer (kgo.MaxBufferedRecords) is full of messages " +
	"that got no answer, some of them to this topic, which gets no more until some are answered; " + whyUnacknowledged)

func newUnanswered(cl *kgo.Client) *unanswered {
	const share = 10
	return &unanswered{most: max(1, option[int64](cl, kgo.MaxBufferedRecords)/share), topics: map[string]int{}}
}

// full reports whether there are so many that a topic which has some is to get no more.
func (l *unanswered) full(topic string) bool {
	if l.all.Load() < l.most {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.topics[topic] > 0
}

// any reports whether there are some, of whatever topic.
func (l *unanswered) any() bool { return l.all.Load() > 0 }

func (l *unanswered) add(topic string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Add(int64(n))
	if l.topics[topic] += n; l.topics[topic] == 0 {
		delete(l.topics, topic)
	}
}

// A wait is for the answer to one message. It is over when that is there, or when nobody waits for it any more; an
// answer that comes after that ends an unanswered one.
type wait struct {
	in    *unanswered
	topic string
	over  atomic.Bool
}

// giveUp counts a message that has no answer.
func (w *wait) giveUp() {
	if !w.over.Swap(true) {
		w.in.add(w.topic, 1)
	}
}

// end notes that there is an answer, which each message gets once, at the latest when the client is closed.
func (w *wait) end() {
	if w.over.Swap(true) {
		w.in.add(w.topic, -1)
	}
}
