package franz_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// An operator who waits then sees records that nobody handles, and a member without an error.
func TestShareWorker_RecordsThatKeepAMemberFromGettingOthersAreSaid(t *testing.T) {
	t.Parallel()
	const window, taken = 2, 20
	b := newShareBench(t, 1)
	for i := range taken + 1 { // in batches of their own: the broker locks whole ones
		b.put(i, 1, 1)
	}
	store := &switched{Store: b.store}
	store.down.Store(true)
	b.store = store
	m := b.begin(b.processor(consumer.Config{MaxWait: consumer.NoWait}), b.handler(byRecord, nil), franz.ShareConfig{MaxInFlight: window},
		kgo.FetchMaxWait(50*time.Millisecond))
	until(t, "a line in the log", func() bool {
		return strings.Contains(b.log.String(), "so many records wait that this member gets no others")
	})
	store.down.Store(false)
	until(t, "all", func() bool { return b.finished() == taken+1 })
	m.leave()
}

// The broker delivers nothing more when so many have come after a record that is not settled. One that waits goes on elsewhere.
func TestShareWorker_RecordsThatWaitDoNotStopTheirPartition(t *testing.T) {
	t.Parallel()
	const n, wait = 300, 2 * time.Second
	for name, c := range map[string]struct {
		waiting int
		ids     []producer.Extractor
	}{"one": {1, nil}, "one that its position names": {1, []producer.Extractor{producer.ExtractPosition}}, "all": {n, nil}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShareBench(t, 1, "share.partition.max.record.locks=100")
			for i := range n { // in batches of their own: the broker locks whole ones
				b.put(i, 1, 1)
			}
			var mu sync.Mutex
			began, early := map[string]time.Time{}, 0
			m := b.begin(b.processor(consumer.Config{Extractors: c.ids}), b.handler(byRecord, func(ctx context.Context, id string, run int) error {
				mu.Lock()
				defer mu.Unlock()
				first, again := began[id]
				if attempt := oncemill.FromContext(ctx).Attempt; attempt != run {
					t.Errorf("%s: run %d is attempt %d: the copy is another message", id, run, attempt)
				}
				switch {
				case again && time.Since(first) < wait:
					early++
				case !again && len(began) < c.waiting:
					began[id] = time.Now()
					return oncemill.RetryAfter(wait, errors.New("not yet"))
				}
				return nil
			}), franz.ShareConfig{}, kgo.FetchMaxWait(50*time.Millisecond))
			until(t, "all to be done", func() bool { return b.finished() == n })
			b.wantSettled(b.topic)
			b.wantSettled(b.retry)
			m.leave()
			if runs := b.started(); runs != n+c.waiting || early != 0 {
				t.Errorf("%d runs, %d of them early, want %d and none", runs, early, n+c.waiting)
			}
			if copies := len(b.records(b.retry)); copies != c.waiting {
				t.Errorf("%d copies in the retry topic, want %d", copies, c.waiting)
			}
		})
	}
}

// All that comes waits then: each record would be copied, however many there are, and the copies would wait, too.
func TestShareWorker_WhatWaitsForTheStoreIsNotCopied(t *testing.T) {
	t.Parallel()
	const n = 110 // more than the locks; a breaker lets few claims a second through
	b := newShareBench(t, 1, "share.partition.max.record.locks=100")
	store := &switched{Store: b.store}
	store.down.Store(true)
	b.store = store
	b.put(0, n, 1) // in one batch, which the broker locks as a whole
	m := b.begin(b.processor(consumer.Config{MaxWait: 100 * time.Millisecond}), b.handler(byRecord, nil), franz.ShareConfig{},
		kgo.FetchMaxWait(50*time.Millisecond))
	until(t, "all to be offered", func() bool { return store.asked.Load() >= n })
	lasts(time.Second) // ten times as long as a delivery is waited with
	if copies := len(b.records(b.retry)); copies > 0 {
		t.Errorf("%d copies in the retry topic, want none", copies)
	}
	store.down.Store(false)
	until(t, "all to be done", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	m.leave()
	b.wantOnce(t, n)
}
