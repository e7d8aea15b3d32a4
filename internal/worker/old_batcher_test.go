package worker_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/worker"
)

// batcher returns a batcher of ints, which hold until release is closed, and what it ran.
func batcher(most, bytes, atOnce int, linger time.Duration, release <-chan struct{}) (
	*worker.Batcher[int], *batch.Pool, <-chan []int,
) {
	ran := make(chan []int, 100)
	pool := &batch.Pool{}
	return &worker.Batcher[int]{Most: most, Bytes: bytes, AtOnce: atOnce, Linger: linger, Pool: pool,
		Run: func(batch []int) {
			ran <- slices.Clone(batch)
			<-release
		}}, pool, ran
}

func TestBatcher_BatchesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b, pool, ran := batcher(3, 100, 1, 0, release)
		b.Add(0, 1)
		synctest.Wait()
		for i, bytes := range []int{10, 10, 10, 60, 50, 300, 1} { // 3 by number; 60; 50 alone; 300 alone; 1
			b.Add(i+1, bytes)
		}
		close(release)
		synctest.Wait()
		pool.Wait()
		var got [][]int
		for len(ran) > 0 {
			got = append(got, <-ran)
		}
		want := [][]int{{0}, {1, 2, 3}, {4}, {5}, {6}, {7}}
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("batches of %v, want %v", got, want)
		}
	})
}

func TestBatcher_SeveralAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b, pool, ran := batcher(2, 100, 2, 0, release)
		for i := range 7 {
			b.Add(i, 1)
			synctest.Wait()
		}
		if len(ran) != 2 {
			t.Errorf("%d batches are under way, want 2", len(ran))
		}
		close(release)
		synctest.Wait()
		pool.Wait()
		if len(ran) != 5 {
			t.Errorf("%d batches, want 0, 1, and then 2, 2 and 1", len(ran))
		}
	})
}

func TestBatcher_LingersForMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		close(release)
		b, pool, ran := batcher(3, 100, 4, time.Second, release)
		began := time.Now()
		b.Add(1, 1)
		time.Sleep(900 * time.Millisecond) // virtual
		b.Add(2, 1)
		synctest.Wait()
		if len(ran) != 0 {
			t.Fatalf("%v did not linger", <-ran)
		}
		if got := <-ran; !slices.Equal(got, []int{1, 2}) || time.Since(began) != time.Second {
			t.Errorf("%v after %v, want both after a second", got, time.Since(began))
		}
		for i := range 3 {
			b.Add(i, 1)
		}
		synctest.Wait()
		if len(ran) != 1 {
			t.Error("a full batch lingers")
		}
		pool.Wait()
	})
}
