package pace

import (
	"sync"
	"time"
)

const (
	hungFor  = 10 * time.Minute // several of the longest waits between two attempts
	quietFor = 2 * time.Minute  // with answers: longer than PublishTimeout and the longest pause, by default
	mostHung = 1000             // topics: where there are more, the broker is away as a whole
)

// Hung are topics whose last messages got no answer. A publisher's call returns when all its messages are answered or
// its time is over, and whatever must not overtake them waits for that. So messages to these topics should go by calls
// of their own. The zero value is usable. It is safe for concurrent use.
type Hung struct {
	mu     sync.Mutex
	topics map[string]time.Time // of the last such message
}

// Note notes that a message to a topic got no answer, and tells whether the topic was not known for that.
func (h *Hung) Note(topic string) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.topics[topic]
	if h.topics == nil || !known && len(h.topics) >= mostHung {
		h.topics = map[string]time.Time{}
	}
	h.topics[topic] = time.Now()
	return !known
}

// Answered notes that a message to a topic was acknowledged. A topic that was away with the whole broker is forgotten
// soon. If only a part of a topic hangs, the messages that wait for it note it again first.
func (h *Hung) Answered(topic string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if at, there := h.topics[topic]; there && time.Since(at) > quietFor {
		delete(h.topics, topic)
	}
}

// None reports whether there is no such topic.
func (h *Hung) None() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics) == 0
}

// Has reports whether a topic is one of them.
func (h *Hung) Has(topic string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, there := h.topics[topic]
	if there && time.Since(at) > hungFor {
		delete(h.topics, topic)
		return false
	}
	return there
}
