package natsjs

import "sync"

// memory holds the Nats-Msg-Ids of messages whose acknowledgement did not come, so that the stream's "duplicate" for
// their repetition is no surprise. It is bounded: when it is full it forgets everything, which costs a warning too
// many.
type memory struct {
	mu  sync.Mutex
	ids map[string]struct{}
}

const maxMemory = 10_000

func (m *memory) add(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids == nil || len(m.ids) >= maxMemory {
		m.ids = map[string]struct{}{}
	}
	m.ids[id] = struct{}{}
}

// remove forgets an ID. It reports whether it was there.
func (m *memory) remove(id string) (known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known = m.ids[id]
	delete(m.ids, id)
	return known
}
