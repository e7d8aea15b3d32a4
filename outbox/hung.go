package outbox

import (
	"sync"
	"time"
)

// hung are topics of which a message got no answer lately. A call of the publisher returns when all of its messages are answered or
// its time is over, and the next row of each lane waits for that: so what goes to these topics goes by calls of its own,
// and holds up no other lanes.
type hung struct {
	mu     sync.Mutex
	topics map[string]time.Time // of the last such message
}

const (
	hungFor  = 10 * time.Minute // several of the longest waits between two attempts
	mostHung = 1000             // topics: where there are more, the broker is away as a whole
)

func (h *hung) note(topic string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.topics == nil || len(h.topics) >= mostHung {
		h.topics = map[string]time.Time{}
	}
	h.topics[topic] = time.Now()
}

// split takes out of rows those of lanes that lead to such a topic, and those without a lane that do. Where no row has a lane
// none waits for another, and all stay together.
func (h *hung) split(rows []Row) (slow, rest []Row) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		return nil, rows
	}
	hangs := func(row Row) bool {
		at, there := h.topics[row.Message.Topic]
		if there && time.Since(at) > hungFor {
			delete(h.topics, row.Message.Topic)
			return false
		}
		return there
	}
	lanes := map[string]bool{}
	for _, row := range rows {
		if row.Lane != "" {
			lanes[row.Lane] = lanes[row.Lane] || hangs(row)
		}
	}
	if len(lanes) == 0 {
		return nil, rows
	}
	for _, row := range rows {
		if row.Lane != "" && lanes[row.Lane] || row.Lane == "" && hangs(row) {
			slow = append(slow, row)
		} else {
			rest = append(rest, row)
		}
	}
	return slow, rest
}
