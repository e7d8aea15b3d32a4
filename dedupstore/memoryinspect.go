package dedupstore

import (
	"container/heap"
	"context"
	"slices"
	"time"
)

// Look implements [Inspector].
func (m *Memory) Look(ctx context.Context, keys []Key) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	records := make([]Record, len(keys))
	for i, key := range keys {
		rec, now := m.find(key)
		records[i] = rec.look(now)
	}
	return records, nil
}

func (rec *record) look(now time.Time) Record {
	seen := rec.Look(rec.key, now)
	seen.History, seen.Outcome = slices.Clone(seen.History), seen.Outcome.Clone()
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
		rec, now := m.find(d.Key)
		m.keep(rec, rec.Note(d, now))
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
	now := m.now()
	m.removeExpired(now)
	page := Page{Looked: len(m.records), Total: len(m.records)}
	for _, rec := range m.records {
		if seen := rec.look(now); f.Matches(&seen) {
			page.Records = append(page.Records, seen)
		}
	}
	return page, nil
}

// Count implements [Inspector].
func (m *Memory) Count(ctx context.Context, f Filter, after string) (Count, error) {
	page, err := m.List(ctx, f, after)
	return page.Count(), err
}

// Change implements [Inspector].
func (m *Memory) Change(ctx context.Context, seen Record, c Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, now := m.find(seen.Key)
	if complete, ok := c.(Complete); ok {
		complete.Outcome = complete.Outcome.Clone()
		c = complete
	}
	next, err := rec.Change(seen, c, now)
	if err == nil && next == nil {
		m.remove(rec)
	}
	m.keep(rec, next)
	return err
}

func (m *Memory) remove(rec *record) {
	heap.Remove(&m.expiry, rec.index)
	delete(m.records, rec.key)
	m.bytes -= rec.bytes
}
