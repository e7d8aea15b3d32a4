package pace_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

func TestLimiter_OneInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines pace.Limiter
		var said atomic.Int64
		for range 120 {
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					if lines.Due(time.Minute) {
						said.Add(1)
					}
				})
			}
			all.Wait()
			time.Sleep(time.Second)
		}
		if n := said.Load(); n != 2 {
			t.Errorf("%d lines in two minutes, want 2", n)
		}
	})
}
