package dedupstore

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"maps"
	"slices"
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
}

// NewMemory returns an empty store. The error names the field of the config that is wrong.
func NewMemory(c MemoryConfig) (*Memory, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	return &Memory{maxBytes: c.MaxBytes, start: time.Now(), records: map[Key]*record{}}, nil
}

// rememberedSettlers is how many owners that settled a record it remembers, to recognise late copies of their claims.
const rememberedSettlers = 4

type record struct {
	key                        Key
	state                      State
	owner                      string
	fence                      uint64
	attempts, returned, reruns int
	fingerprint                Fingerprint
	lease, due, first, expires time.Time
	started                    bool
	settled                    []string
	trace                      string
	outcome                    Outcome
	decided                    uint64 // the fence under which the outcome was decided
	holder                     string
	claimed, ended             time.Time
	history                    []Attempt
	duplicates                 int
	lastDuplicate              time.Time
	index                      int // in the expiry heap
	bytes                      int64
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
	now := m.now()
	m.removeExpired(now)
	rec := m.records[r.Key]
	if rec == nil {
		rec = &record{key: r.Key, state: Absent, first: now, index: -1}
	}
	before := rec.fence
	answer := Answer{Found: rec.state, Fence: rec.fence, Age: now.Sub(rec.first), Trace: rec.trace}
	rec.decide(r, now, &answer)
	if rec.index < 0 && m.bytes+rec.size() > m.maxBytes {
		return Answer{}, ErrFull
	}
	if answer.Status == Done || answer.Status == AcquiredPublish {
		answer.Fence = rec.decided
	}
	if answer.Status == AcquiredRun || answer.Status == AcquiredPublish {
		answer.Claim = Claim{
			Key: r.Key, Owner: r.Owner, Fence: rec.fence, Attempt: rec.attempts, Returned: rec.returned,
			Lease: r.Lease, Retention: r.Retention, Holder: r.Holder,
		}
	}
	if rec.fence != before { // an owner that only asks again changes nothing
		m.keep(rec, rec.lease.Add(r.Retention))
	}
	return answer, nil
}

// decide answers a claim in the order that Store.Claim documents.
func (rec *record) decide(r Request, now time.Time, a *Answer) {
	rerun := rec.state == Finished && r.Rerun != 0 && r.Rerun == rec.decided && rec.outcome.Kind != Succeeded
	spent := rec.attempts >= r.MaxAttempts
	switch {
	case rec.fingerprint.Differs(r.Fingerprint):
		a.Status = Mismatch
	case rerun:
		rec.again()
		rec.run(r, now)
		a.Status = AcquiredRun
	case rec.state == Finished:
		a.Status, a.Outcome = Done, rec.outcome.clone()
	case rec.owner == r.Owner && rec.state == Running:
		a.Status = AcquiredRun
	case rec.owner == r.Owner && rec.state == Publishing:
		a.Status, a.Outcome = AcquiredPublish, rec.outcome.clone()
	case slices.Contains(rec.settled, r.Owner), now.Before(rec.lease), now.Before(rec.due):
		a.Status, a.Wait = Busy, max(0, rec.lease.Sub(now), rec.due.Sub(now))
	case rec.state == Publishing:
		rec.own(r, now)
		a.Status, a.Outcome = AcquiredPublish, rec.outcome.clone()
	case rec.state == Running && rec.started && r.ParkExpired:
		rec.end(r, now, Outcome{Kind: Unknown, Reason: "the lease of a started run expired"})
		a.Status, a.Outcome = AcquiredPublish, rec.outcome.clone()
	case spent:
		reason := fmt.Sprintf("%d of %d attempts spent", rec.attempts, r.MaxAttempts)
		rec.end(r, now, Outcome{Kind: Failed, Exhausted: true, Reason: reason})
		a.Status, a.Outcome = AcquiredPublish, rec.outcome.clone()
	default:
		rec.run(r, now)
		a.Status = AcquiredRun
	}
}

// again begins the attempts anew, on request.
func (rec *record) again() { rec.attempts, rec.returned, rec.reruns = 0, 0, rec.reruns+1 }

func (rec *record) run(r Request, now time.Time) {
	rec.own(r, now)
	rec.state, rec.outcome, rec.trace = Running, Outcome{}, r.Trace
	rec.attempts++
	rec.started = false
	if rec.fingerprint.IsZero() || rec.fingerprint.Scheme != r.Fingerprint.Scheme && !r.Fingerprint.IsZero() {
		rec.fingerprint = r.Fingerprint
	}
}

func (rec *record) end(r Request, now time.Time, o Outcome) {
	rec.own(r, now)
	rec.state, rec.outcome, rec.decided = Publishing, o, rec.fence
}

func (rec *record) own(r Request, now time.Time) {
	if rec.state != Absent {
		past := Attempt{Claimed: rec.claimed, Ended: rec.ended, Holder: rec.holder, Reason: rec.outcome.Reason}
		kept := rec.history[max(0, len(rec.history)+1-MaxHistory):]
		rec.history = append(slices.Clone(kept), past)
	}
	rec.owner, rec.holder, rec.claimed, rec.ended = r.Owner, r.Holder, now, time.Time{}
	rec.fence = max(rec.fence+1, uint64(now.UnixMicro()))
	rec.lease, rec.due = now.Add(r.Lease), time.Time{}
}

func (rec *record) heldBy(c Claim) bool {
	return rec != nil && rec.owner == c.Owner && rec.fence == c.Fence
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
	now := m.now()
	m.removeExpired(now)
	rec := m.records[x.Claim.Key]
	if !rec.heldBy(x.Claim) || rec.state != Running && rec.state != Publishing {
		return ErrClaimLost
	}
	rec.started = rec.started || x.Started && rec.state == Running
	rec.lease = now.Add(x.Lease)
	m.keep(rec, rec.lease.Add(x.Claim.Retention))
	return nil
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
	now := m.now()
	m.removeExpired(now)
	rec := m.records[c.Key]
	switch s := s.(type) {
	case Finish:
		return m.finish(rec, c, s, now)
	case Release:
		return m.release(rec, c, s, now)
	case Published:
		return m.published(rec, c, s, now)
	}
	panic("unreachable: validated above")
}

func (m *Memory) finish(rec *record, c Claim, s Finish, now time.Time) error {
	switch {
	case !rec.heldBy(c) || rec.state == Retryable:
		return ErrClaimLost
	case rec.state != Running && slices.Contains(rec.settled, c.Owner):
		return nil // repeated
	case rec.state != Running: // the outcome is not this owner's: it only got it to publish
		return ErrClaimLost
	}
	rec.settledBy(c.Owner, s.Took)
	rec.outcome, rec.decided = s.Outcome.clone(), rec.fence
	if s.Publishes() {
		rec.state, rec.lease = Publishing, now.Add(c.Lease)
		m.keep(rec, rec.lease.Add(s.Retention))
		return nil
	}
	m.close(rec, now.Add(s.Retention))
	return nil
}

func (m *Memory) release(rec *record, c Claim, s Release, now time.Time) error {
	switch {
	case rec != nil && rec.state == Retryable && slices.Contains(rec.settled, c.Owner):
		return nil // repeated
	case !rec.heldBy(c) || rec.state != Running:
		return ErrClaimLost
	}
	rec.settledBy(c.Owner, s.Took)
	rec.state, rec.owner, rec.started = Retryable, "", false
	rec.lease, rec.due = time.Time{}, now.Add(s.Delay)
	if s.Uncounted {
		rec.attempts--
		rec.returned++
	}
	rec.outcome = Outcome{Reason: s.Reason}
	m.keep(rec, rec.due.Add(c.Retention))
	return nil
}

func (m *Memory) published(rec *record, c Claim, s Published, now time.Time) error {
	switch {
	case !rec.heldBy(c) || rec.state != Publishing && rec.state != Finished:
		return ErrClaimLost
	case rec.state == Finished:
		return nil // repeated
	}
	if len(rec.outcome.Produced) == 0 {
		rec.outcome.Produced = s.Produced
	}
	m.close(rec, now.Add(s.Retention))
	return nil
}

func (m *Memory) close(rec *record, expires time.Time) {
	rec.state, rec.lease = Finished, time.Time{}
	rec.outcome.Produced = Stubs(rec.outcome.Produced)
	m.keep(rec, expires)
}

func (rec *record) settledBy(owner string, took time.Duration) {
	if took > 0 {
		rec.ended = rec.claimed.Add(took)
	}
	rec.settled = append(rec.settled, owner)
	if n := len(rec.settled); n > rememberedSettlers {
		rec.settled = slices.Clone(rec.settled[n-rememberedSettlers:])
	}
}

// Len is the number of records, expired ones included that no operation has removed yet.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// keep stores a record until it expires, and counts its size.
func (m *Memory) keep(rec *record, expires time.Time) {
	rec.expires = expires
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
	for len(m.expiry) > 0 && !now.Before(m.expiry[0].expires) {
		rec := heap.Pop(&m.expiry).(*record)
		delete(m.records, rec.key)
		m.bytes -= rec.bytes
	}
}

// recordOverhead estimates what a record costs beside its variable parts: the struct, the map's and the heap's slots.
const recordOverhead = 640

func (rec *record) size() int64 {
	n := recordOverhead + len(rec.key.Tenant) + len(rec.key.Group) + len(rec.key.Handler) + len(rec.key.ID) +
		len(rec.owner) + len(rec.holder) + len(rec.fingerprint.Scheme) + len(rec.fingerprint.Sum) + len(rec.trace) +
		len(rec.outcome.Reason) + len(rec.outcome.Result)
	for _, past := range rec.history {
		n += 80 + len(past.Holder) + len(past.Reason)
	}
	for _, owner := range rec.settled {
		n += 16 + len(owner)
	}
	for _, p := range rec.outcome.Produced {
		n += 128 + len(p.ID) + len(p.Topic) + len(p.Key) + len(p.Payload)
		for k, v := range p.Header {
			n += 64 + len(k) + len(v)
		}
	}
	return int64(n)
}

func (o Outcome) clone() Outcome {
	o.Result = bytes.Clone(o.Result)
	o.Produced = slices.Clone(o.Produced)
	for i := range o.Produced {
		o.Produced[i].Header = maps.Clone(o.Produced[i].Header)
		o.Produced[i].Payload = bytes.Clone(o.Produced[i].Payload)
	}
	return o
}

// expiryHeap orders records by the time at which they expire.
type expiryHeap []*record

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }
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
