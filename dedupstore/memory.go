package dedupstore

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"
)

// MemoryConfig configures a [Memory]. The zero value is ready to use.
type MemoryConfig struct {
	// MaxBytes bounds the memory of all records, by an estimate that counts keys, results, produced messages and a
	// constant for each record. Zero means 256 MiB. When it is reached, new keys are refused with ErrFull: forgetting
	// a record silently would let its message run again.
	MaxBytes int64
}

func (c MemoryConfig) withDefaults() MemoryConfig {
	if c.MaxBytes == 0 {
		c.MaxBytes = 256 << 20
	}
	return c
}

func (c MemoryConfig) validate() error {
	if c.MaxBytes < 0 {
		return invalid("MemoryConfig.MaxBytes", fmt.Sprintf("is %d, want at least 0", c.MaxBytes))
	}
	return nil
}

// Memory is a Store in the memory of one process, for tests, examples and single processes that may forget everything
// when they stop. Its clock is the process's monotonic clock. Expired records are removed by the operations that
// follow. Its batches are no faster than their operations.
type Memory struct {
	maxBytes int64
	start    time.Time

	mu      sync.Mutex
	records map[Key]*record
	expiry  expiryHeap
	bytes   int64
	scopes  map[Scope]ScopeUse
}

// NewMemory returns an empty store. The error names the field of the config that is wrong.
func NewMemory(c MemoryConfig) (*Memory, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	return &Memory{
		maxBytes: c.MaxBytes, start: time.Now(), records: map[Key]*record{}, scopes: map[Scope]ScopeUse{},
	}, nil
}

type record struct {
	Stored
	key   Key
	index int // in the expiry heap
	bytes int64
}

// now is the store's clock: the wall clock of the start, carried on by the monotonic clock.
func (m *Memory) now() time.Time { return m.start.Add(time.Since(m.start)) }

// Claim implements [Store].
func (m *Memory) Claim(ctx context.Context, requests []Request) []ClaimResult {
	return ClaimEach(ctx, requests, m.claim)
}

func (m *Memory) claim(ctx context.Context, r Request) (Answer, error) {
	if err := r.Validate(); err != nil {
		return Answer{}, err
	}
	if err := ctx.Err(); err != nil {
		return Answer{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, now := m.find(r.Key)
	next, answer := rec.Claim(r, now)
	answer.Outcome = answer.Outcome.Clone()
	if rec.index < 0 && m.bytes+(&record{Stored: *next, key: r.Key}).size() > m.maxBytes {
		return Answer{}, ErrFull
	}
	m.keep(rec, next)
	return answer, nil
}

// find returns the record of a key, with index -1 if there is none. The caller has the lock.
func (m *Memory) find(k Key) (*record, time.Time) {
	now := m.now()
	m.removeExpired(now)
	rec := m.records[k]
	if rec == nil {
		rec = &record{key: k, index: -1}
	}
	return rec, now
}

// Extend implements [Store].
func (m *Memory) Extend(ctx context.Context, extensions []Extension) []error {
	return ExtendEach(ctx, extensions, m.extend)
}

func (m *Memory) extend(ctx context.Context, x Extension) error {
	if err := x.Validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, now := m.find(x.Claim.Key)
	next, err := rec.Extend(x, now)
	m.keep(rec, next)
	return err
}

// Settle implements [Store].
func (m *Memory) Settle(ctx context.Context, settlings []Settling) []error {
	return SettleEach(ctx, settlings, m.settle)
}

func (m *Memory) settle(ctx context.Context, c Claim, s Settlement) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := ValidateSettlement(s); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f, ok := s.(Finish); ok {
		f.Outcome = f.Outcome.Clone()
		s = f
	}
	rec, now := m.find(c.Key)
	next, err := rec.Settle(c, s, now)
	m.keep(rec, next)
	return err
}

// keep stores what became of a record, unless that is nil, until it expires, and counts its size.
func (m *Memory) keep(rec *record, next *Stored) {
	if next == nil {
		return
	}
	rec.Stored = *next
	if rec.index < 0 {
		m.records[rec.key] = rec
		heap.Push(&m.expiry, rec)
	} else {
		heap.Fix(&m.expiry, rec.index)
	}
	size := rec.size()
	m.bytes += size - rec.bytes
	rec.bytes = size
}

func (m *Memory) removeExpired(now time.Time) {
	for len(m.expiry) > 0 && !now.Before(m.expiry[0].Expires) {
		rec := heap.Pop(&m.expiry).(*record)
		delete(m.records, rec.key)
		m.bytes -= rec.bytes
	}
}

// recordOverhead estimates what a record costs beside its variable parts: the struct, the map's and the heap's slots.
const recordOverhead = 640

func (rec *record) size() int64 {
	n := recordOverhead + len(rec.key.Tenant) + len(rec.key.Group) + len(rec.key.Handler) + len(rec.key.ID) +
		len(rec.Owner) + len(rec.Holder) + len(rec.Fingerprint.Scheme) + len(rec.Fingerprint.Sum) + len(rec.Trace) +
		len(rec.Outcome.Reason) + len(rec.Outcome.Result)
	for _, past := range rec.History {
		n += 80 + len(past.Holder) + len(past.Reason)
	}
	for _, owner := range rec.Settled {
		n += 16 + len(owner)
	}
	for _, p := range rec.Outcome.Produced {
		n += 128 + len(p.ID) + len(p.Topic) + len(p.Key) + len(p.Payload)
		for k, v := range p.Header {
			n += 64 + len(k) + len(v)
		}
	}
	return int64(n)
}

// expiryHeap orders records by the time at which they expire.
type expiryHeap []*record

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].Expires.Before(h[j].Expires) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *expiryHeap) Push(x any) {
	rec := x.(*record)
	rec.index = len(*h)
	*h = append(*h, rec)
}

func (h *expiryHeap) Pop() any {
	old := *h
	rec := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	rec.index = -1
	return rec
}
