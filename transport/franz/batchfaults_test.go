package franz_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// batchHandler returns a handler that keeps the ledger, and how large its batches were.
func (l *ledger) batchHandler(
	work func(ctx context.Context, ids []string) []error,
) (handle franz.BatchHandler, largest func() int) {
	most := 0
	handle = func(ctx context.Context, records []*kgo.Record) []error {
		var ids []string
		l.mu.Lock()
		most = max(most, len(records))
		for _, rec := range records {
			ids = append(ids, string(rec.Value))
			l.runs[string(rec.Value)]++
			if l.inside[string(rec.Key)]++; rec.Key != nil && l.inside[string(rec.Key)] > 1 {
				l.overlap = append(l.overlap, string(rec.Key)+" "+string(rec.Value))
			}
		}
		l.mu.Unlock()
		var errs []error
		if work != nil {
			errs = work(ctx, ids)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, rec := range records {
			l.inside[string(rec.Key)]--
			if len(errs) == 0 || len(errs) == len(records) && errs[i] == nil {
				l.done[ids[i]]++
				l.order[string(rec.Key)] = append(l.order[string(rec.Key)], ids[i])
			}
		}
		return errs
	}
	return handle, func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return most
	}
}

func (b *bench) wantCommitted(n, partitions int) {
	b.t.Helper()
	want := map[int32]int64{}
	for p := range int32(partitions) {
		want[p] = int64(n / partitions)
	}
	if diff := cmp.Diff(want, b.committed("orders")); diff != "" {
		b.t.Errorf("committed (-want +got):\n%s", diff)
	}
}

func TestBatchWorker_MembersComeAndGoAndNothingThatFinishedRunsAgain(t *testing.T) {
	t.Parallel()
	const partitions = 6
	n := full(6000, 1800)
	b := newBench(t, partitions)
	b.produce(0, n, partitions, n/3)
	handle, largest := b.batchHandler(func(context.Context, []string) []error {
		lasts(20 * time.Millisecond)
		return nil
	})
	newMember := func() *member {
		return b.startBatches(b.processor(consumer.Config{}), handle,
			franz.BatchConfig{MaxBatch: 16, Config: franz.Config{MaxInFlight: 40}})
	}
	progress := func(part int) {
		t.Helper()
		until(t, "progress", func() bool { return b.finished() >= n*part/8 })
	}
	first, second := newMember(), newMember()
	b.stable(2, partitions)
	progress(2)
	second.leave()
	progress(4)
	second = newMember()
	until(t, "all records", func() bool { return b.finished() == n })
	first.leave()
	second.leave()
	b.wantOnce(t, n)
	b.wantOrder(t)
	if runs := b.started(); runs != n {
		t.Errorf("%d runs of %d records", runs, n)
	}
	b.wantCommitted(n, partitions)
	if most := largest(); most < 2 || most > 16 {
		t.Errorf("the largest batch had %d records, want at most 16, and more than one", most)
	}
}

// A lingering batch holds up neither a rebalance nor a drain. Records that are given up meanwhile are the next owner's.
func TestBatchWorker_WhatLingersHoldsUpNobody(t *testing.T) {
	t.Parallel()
	const n = 8
	b := newBench(t, 2)
	b.produce(0, n, 2, 0)
	handle, _ := b.batchHandler(nil)
	config := franz.BatchConfig{MaxBatch: 64, Linger: time.Hour}
	first := b.startBatches(b.processor(consumer.Config{}), handle, config)
	b.stable(1, 2)
	lasts(300 * time.Millisecond) // they are fetched
	second := b.startBatches(b.processor(consumer.Config{}), handle, config)
	b.stable(2, 2)
	first.leave()
	second.leave()
	third := b.startBatches(b.processor(consumer.Config{}), handle, franz.BatchConfig{})
	until(t, "all records", func() bool { return b.finished() == n })
	third.leave()
	b.wantOnce(t, n)
	b.wantCommitted(n, 2)
}

// The handler of a batch ends when one of its partitions is revoked. The records of the others cost no attempt.
func TestBatchWorker_ARevocationCostsTheOthersNoAttempt(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 2, 2, 0)
	const timeout = 5 * time.Second
	var mu sync.Mutex
	var attempts []int
	handle, _ := b.batchHandler(func(ctx context.Context, ids []string) []error {
		mu.Lock()
		for _, run := range oncemill.RunsFromContext(ctx) {
			attempts = append(attempts, run.Attempt)
		}
		mu.Unlock()
		if len(ids) == 1 {
			return nil
		}
		<-ctx.Done()
		return []error{ctx.Err(), ctx.Err()}
	})
	once := b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: 1}})
	config := franz.BatchConfig{MaxBatch: 2, Linger: time.Second, Config: franz.Config{Grace: time.Second}}
	first := b.startBatches(once, handle, config, kgo.RebalanceTimeout(timeout))
	until(t, "the batch", func() bool { return b.started() == 2 })
	second := b.startBatches(once, handle, config, kgo.RebalanceTimeout(timeout))
	until(t, "both", func() bool { return b.finished() == 2 })
	first.leave()
	second.leave()
	b.wantCommitted(2, 2)
	mu.Lock()
	defer mu.Unlock()
	for _, attempt := range attempts {
		if attempt != 1 {
			t.Errorf("attempts %v, want no other than the first", attempts)
		}
	}
}
