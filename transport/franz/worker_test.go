package franz_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestWorker_HandlesEachRecordAndCommitsIt(t *testing.T) {
	t.Parallel()
	for _, order := range []franz.Order{franz.PerPartition, franz.PerKey} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			const n = 600
			b := newBench(t, 3)
			b.produce(0, n, 3, 5)
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{Order: order})
			until(t, "all records", func() bool { return b.finished() == n })
			m.leave()
			b.wantOnce(t, n)
			if diff := cmp.Diff(map[int32]int64{0: n / 3, 1: n / 3, 2: n / 3}, b.committed("orders")); diff != "" {
				t.Errorf("committed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWorker_KeepsTheOrderOfAPartitionThroughFailures(t *testing.T) {
	t.Parallel()
	const n = 90
	b := newBench(t, 3)
	b.produce(0, n, 3, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, failing), franz.Config{})
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	b.wantOnce(t, n)
	b.wantOrder(t)
}

func TestWorker_KeepsTheOrderOfAKeyThroughFailures(t *testing.T) {
	t.Parallel()
	const n = 90
	b := newBench(t, 1)
	b.produce(0, n, 1, 6)
	m := b.start(b.processor(consumer.Config{}), b.handler(byKey, failing), franz.Config{Order: franz.PerKey})
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	b.wantOnce(t, n)
	b.wantOrder(t)
}

// failing fails every fifth record twice.
func failing(_ context.Context, id string, run int) error {
	var n int
	if _, err := fmt.Sscanf(id, "o%d", &n); err != nil {
		return err
	}
	if n%5 == 0 && run <= 2 {
		return errors.New("the bank is closed")
	}
	return nil
}
