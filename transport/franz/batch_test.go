package franz_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/transport/franz"
)

// A batchLedger is what a handler of batches got.
type batchLedger struct {
	mu       sync.Mutex
	batches  [][]string
	attempts map[string][]int
}

// countBatches runs a batch worker. Its handler is told the values of the records.
func (b *bench) countBatches(
	l *batchLedger, config franz.BatchConfig, policy oncemill.Policy, handle func(ids []string) []error,
) *member {
	b.t.Helper()
	l.attempts = map[string][]int{}
	config.Handler, config.CommitEvery, config.Logger = "charge", 20*time.Millisecond, b.logger
	w, err := franz.NewBatchWorker(b.processor(consumer.Config{Policy: policy}),
		func(ctx context.Context, records []*kgo.Record) []error {
			var ids []string
			l.mu.Lock()
			for i, run := range oncemill.RunsFromContext(ctx) {
				id := string(records[i].Value)
				if run.Key.ID != id {
					b.t.Errorf("run %d is of %q, and its record is %q", i, run.Key.ID, id)
				}
				ids = append(ids, id)
				l.attempts[id] = append(l.attempts[id], run.Attempt)
			}
			l.batches = append(l.batches, ids)
			l.mu.Unlock()
			return handle(ids)
		}, config)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.run(w)
}

func (l *batchLedger) got() [][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.batches)
}

// commits waits until n records are committed.
func (b *bench) commits(n int) {
	b.t.Helper()
	until(b.t, "the commits", func() bool {
		sum := int64(0)
		for _, at := range b.committed("orders") {
			sum += at
		}
		return sum == int64(n)
	})
}

func TestBatchWorker_BatchesOfWhatIsThere(t *testing.T) {
	t.Parallel()
	const n, partitions = 600, 3
	b := newBench(t, partitions)
	b.produce(0, n, partitions, 0)
	b.produce(0, n, partitions, 0) // duplicates
	var l batchLedger
	m := b.countBatches(&l, franz.BatchConfig{MaxBatch: 16}, oncemill.Policy{}, func([]string) []error { return nil })
	b.commits(2 * n)
	m.leave()
	seen, largest := map[string]int{}, 0
	for _, batch := range l.got() {
		largest = max(largest, len(batch))
		for _, id := range batch {
			seen[id]++
		}
	}
	for i := range n {
		if seen[orderID(i)] != 1 {
			t.Errorf("%s was handled %d times, want once", orderID(i), seen[orderID(i)])
		}
	}
	if largest < 2 || largest > 16 {
		t.Errorf("the largest batch had %d records, want at most 16, and more than one", largest)
	}
}

func TestNewBatchWorker_WarnsOfBatchesOfOne(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for i, policy := range []oncemill.Policy{{}, oncemill.Irreversible()} {
		store := storetest.NewMemoryInbox(consumertest.NewStore(t))
		_, err := franz.NewBatchWorker(consumertest.NewProcessor(t, store, consumer.Config{Policy: policy}),
			func(context.Context, []*kgo.Record) []error { return nil },
			franz.BatchConfig{Config: franz.Config{Handler: "charge", Logger: logger}})
		if warned := strings.Contains(log.String(), "each batch has one record"); err != nil || warned != (i == 1) {
			t.Errorf("%d: %v; logged:\n%s", i, err, &log)
		}
	}
}
