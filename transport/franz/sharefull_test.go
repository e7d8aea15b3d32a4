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

// Who waits then sees records that nobody handles, and a member without an error. What is settled behind a record that is not is
// counted by the broker, too.
func TestShareWorker_RecordsThatKeepAllOthersFromBeingDeliveredAreSaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		window, delivered int
		first, others     error // nil of the first: its handler does not return
		want              string
	}{
		"one whose handler runs, as far as the broker delivers beyond it": {window: 256, delivered: 100, want: `partition=0 offset=0 delivered_to=99 distance=100`},
		"as many that wait as the member takes":                           {window: 2, delivered: 20, first: anHour, others: anHour, want: "so many records wait that this member gets no others"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShareBench(t, 1, "share.partition.max.record.locks=100")
			for i := range c.delivered + 1 { // in batches of their own: the broker locks whole ones
				b.put(i, 1, 1)
			}
			m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(ctx context.Context, id string, _ int) error {
				switch {
				case id != "o0":
					return c.others
				case c.first == nil:
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return c.first
			}), franz.ShareConfig{MaxInFlight: c.window, Grace: time.Second}, kgo.FetchMaxWait(50*time.Millisecond))
			until(t, "a line in the log", func() bool {
				return strings.Contains(b.log.String(), c.want)
			})
			m.leave()
			if runs := b.started(); runs != c.delivered {
				t.Errorf("%d runs, want %d: the broker does not deliver the last", runs, c.delivered)
			}
		})
	}
}

var anHour = oncemill.RetryAfter(time.Hour, errors.New("not before an hour"))

// The broker delivers nothing more when so many have come after a record that is not settled. One that waits goes on elsewhere before.
func TestShareWorker_RecordsThatWaitDoNotStopTheirPartition(t *testing.T) {
	t.Parallel()
	const n, wait = 300, 2 * time.Second
	for name, c := range map[string]struct {
		waiting, least, most int
		ids                  []producer.Extractor
	}{"one": {1, 1, 1, nil}, "one that its position names": {1, 1, 1, []producer.Extractor{producer.ExtractPosition}}, "all": {n, n / 2, n, nil}} {
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
			if copies := len(b.records(b.retry)); copies < c.least || copies > c.most {
				t.Errorf("%d copies in the retry topic, want %d to %d", copies, c.least, c.most)
			}
		})
	}
}

// Copies that cannot be made are as many as records wait. A topic that refuses one refuses it again, and each try has others wait.
func TestShareWorker_CopiesOfRecordsThatWaitAreTriedOnceIfTheyAreRefused(t *testing.T) {
	t.Parallel()
	const n = 60
	b := newShareBench(t, 1, "share.partition.max.record.locks=100")
	b.limit(50) // smaller than any
	for i := range n {
		b.put(i, 1, 1)
	}
	var tries produceRequests
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(context.Context, string, int) error {
		return anHour
	}), franz.ShareConfig{}, kgo.FetchMaxWait(50*time.Millisecond), kgo.WithHooks(&tries))
	const said = "franz: record that waits cannot be copied to the retry topic"
	until(t, "a line in the log", func() bool { return strings.Contains(b.log.String(), said) })
	for i := range 3 { // each poll, and each second, has what waits looked at
		b.put(n+i, 1, 1)
		until(t, "one more", func() bool { return b.started() == n+i+1 })
		lasts(time.Second)
	}
	m.leave()
	if got := strings.Count(b.log.String(), said); got != 1 {
		t.Errorf("%d lines say so, want 1", got)
	}
	if got, most := tries.n.Load(), int32(2*(n+3-50)); got > most { // once with others, once alone
		t.Errorf("%d requests to write copies, want %d at most", got, most)
	}
}

// All that comes waits then: each record would be copied, however many there are, and the copies would wait, too.
func TestShareWorker_WhatWaitsForTheStoreIsNotCopied(t *testing.T) {
	t.Parallel()
	const n = 300
	b := newShareBench(t, 1, "share.partition.max.record.locks=100")
	store := &switched{Store: b.store}
	store.down.Store(true)
	b.store = store
	b.put(0, n, 1) // in one batch, which the broker locks as a whole
	m := b.begin(b.processor(consumer.Config{}), b.handler(byRecord, func(context.Context, string, int) error {
		return nil
	}), franz.ShareConfig{}, kgo.FetchMaxWait(50*time.Millisecond))
	until(t, "all to be offered", func() bool { return store.asked.Load() >= n })
	lasts(3 * time.Second) // what waits is looked at each second
	if copies := len(b.records(b.retry)); copies > 0 {
		t.Errorf("%d copies in the retry topic, want none", copies)
	}
	store.down.Store(false)
	until(t, "all to be done", func() bool { return b.finished() == n })
	b.wantSettled(b.topic)
	m.leave()
	b.wantOnce(t, n)
}
