package dedupstore

import "unsafe"

// Bytes is what the records take by the store's estimate.
func (m *Memory) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// RecordSize is the size of a record without what it points to.
const RecordSize = int64(unsafe.Sizeof(record{}))
