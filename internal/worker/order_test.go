package worker_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/worker"
)

func TestOrder_KeepsTheOrderOfEachKey(t *testing.T) {
	const width, depth = 8, 500
	var order worker.Order
	var pool batch.Pool
	var mu sync.Mutex
	got := map[string][]int{}
	var inside [width]atomic.Int32
	var all sync.WaitGroup
	all.Add(width * depth)
	for i := range depth {
		for k := range width {
			key := fmt.Sprint("key ", k)
			order.Start(key, func() {
				pool.Go(func() {
					defer all.Done()
					if inside[k].Add(1) > 1 {
						t.Errorf("%s runs twice at once", key)
					}
					mu.Lock()
					got[key] = append(got[key], i)
					mu.Unlock()
					inside[k].Add(-1)
					order.Done(key)
				})
			})
		}
	}
	all.Wait()
	pool.Wait()
	for key, numbers := range got {
		if len(numbers) != depth {
			t.Fatalf("%s ran %d times, want %d", key, len(numbers), depth)
		}
		for i, n := range numbers {
			if i != n {
				t.Fatalf("%s ran %d as number %d", key, n, i)
			}
		}
	}
}

func TestOrder_KeysDoNotWaitForEachOther(t *testing.T) {
	var order worker.Order
	for _, keys := range [][]string{{"a", "b"}, {"", ""}} {
		started := 0
		for _, key := range keys {
			order.Start(key, func() { started++ })
		}
		if started != 2 {
			t.Errorf("%d of %q have started, want both", started, keys)
		}
	}
	order.Done("a")
	again := false
	order.Start("a", func() { again = true })
	order.Start("b", func() { t.Error("the one before is not done") })
	if !again {
		t.Error("a key whose work is done does not start anew")
	}
}
