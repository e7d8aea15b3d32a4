package dedupstore

import (
	"time"
	"unsafe"
)

// TTL is how much longer the store keeps a record.
func (m *Memory) TTL(k Key) (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.records[k]
	if rec == nil {
		return 0, false
	}
	return rec.Expires.Sub(m.now()), true
}

// Len is the number of records, expired ones included that no operation has removed yet.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// Bytes is what the records take by the store's estimate.
func (m *Memory) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// RecordSize is the size of a record without what it points to.
const RecordSize = int64(unsafe.Sizeof(record{}))
