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

func (m *memory) has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.ids[id]
	return ok
}

func (m *memory) remove(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.ids, id)
}
