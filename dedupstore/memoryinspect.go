package dedupstore

import (
	"container/heap"
	"context"
	"slices"
)

// Look implements [Inspector].
func (m *Memory) Look(ctx context.Context, keys []Key) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeExpired(m.now())
	records := make([]Record, len(keys))
	for i, key := range keys {
		records[i] = Record{Key: key, State: Absent}
		if rec := m.records[key]; rec != nil {
			records[i] = rec.look()
		}
	}
	return records, nil
}

func (rec *record) look() Record {
	seen := Record{
		Key: rec.key, State: rec.state, Started: rec.started && rec.state == Running, Fence: rec.fence,
		Attempts: rec.attempts, Returned: rec.returned, Reruns: rec.reruns,
		First: rec.first, Claimed: rec.claimed, Ended: rec.ended,
		Expires: rec.expires, Holder: rec.holder, Trace: rec.trace, History: slices.Clone(rec.history),
		Outcome: rec.outcome.clone(), Duplicates: rec.duplicates, LastDuplicate: rec.lastDuplicate,
	}
	seen.Outcome.Produced = Stubs(seen.Outcome.Produced)
	switch rec.state {
	case Running:
		seen.Until = rec.lease
	case Retryable:
		seen.Until = rec.due
	case Publishing:
		seen.Until, seen.Decided = rec.lease, rec.decided
	case Finished:
		seen.Decided = rec.decided
	}
	return seen
}

// NoteDuplicates implements [Inspector].
func (m *Memory) NoteDuplicates(ctx context.Context, duplicates []Duplicates) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range duplicates {
		if rec := m.records[d.Key]; rec != nil {
			rec.duplicates += d.Count
			rec.lastDuplicate = d.Last
		}
	}
	return nil
}

// List implements [Inspector]. All records are one page.
func (m *Memory) List(ctx context.Context, f Filter, _ string) (Page, error) {
	if err := ctx.Err(); err != nil {
		return Page{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeExpired(m.now())
	page := Page{Looked: len(m.records), Total: len(m.records)}
	for _, rec := range m.records {
		if seen := rec.look(); f.Matches(&seen) {
			page.Records = append(page.Records, seen)
		}
	}
	return page, nil
}

// Count implements [Inspector].
func (m *Memory) Count(ctx context.Context, f Filter, after string) (Count, error) {
	page, err := m.List(ctx, f, after)
	return page.count(), err
}

// Change implements [Inspector].
func (m *Memory) Change(ctx context.Context, seen Record, c Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.removeExpired(now)
	found := Record{Key: seen.Key, State: Absent}
	rec := m.records[seen.Key]
	if rec != nil {
		found = rec.look()
	}
	if err := Refuse(c, seen, found, now); err != nil {
		return err
	}
	switch c := c.(type) {
	case Forget:
		m.remove(rec)
		return nil
	case Rerun:
		rec.again()
		rec.state, rec.owner, rec.due = Retryable, "", now
		rec.outcome = Outcome{Reason: rec.outcome.Reason}
	case Complete:
		stubs := rec.outcome.Produced
		rec.outcome = c.Outcome.clone()
		rec.outcome.Produced = stubs
	}
	m.keep(rec, rec.expires)
	return nil
}

func (m *Memory) remove(rec *record) {
	heap.Remove(&m.expiry, rec.index)
	delete(m.records, rec.key)
	m.bytes -= rec.bytes
}
