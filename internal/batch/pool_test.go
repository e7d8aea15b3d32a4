package batch_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/oncemill/oncemill/internal/batch"
)

func TestPool_WaitsForWorkAlsoIfThatEndsItsGoroutine(t *testing.T) {
	var pool batch.Pool
	var ran atomic.Int32
	begin := make(chan struct{})
	pool.Go(func() {
		<-begin
		pool.Go(func() { ran.Add(1) })
		runtime.Goexit()
	})
	close(begin)
	pool.Wait()
	if ran.Load() != 1 {
		t.Error("what the work has begun did not run")
	}
}

func TestPool_CanBeUsedAgainAfterWait(t *testing.T) {
	var pool batch.Pool
	var ran atomic.Int32
	for range 3 {
		for range 50 {
			pool.Go(func() { ran.Add(1) })
		}
		pool.Wait()
	}
	if ran.Load() != 150 {
		t.Errorf("%d ran, want 150", ran.Load())
	}
}
