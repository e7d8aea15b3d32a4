package lanes_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncemill/oncemill/internal/lanes"
)

func TestSet_KeepsTheOrderOfEachLane(t *testing.T) {
	const width, depth = 8, 500
	var set lanes.Set
	var mu sync.Mutex
	got := map[string][]int{}
	var inside [width]atomic.Int32
	for i := range depth {
		for l := range width {
			lane := fmt.Sprint("lane ", l)
			set.Go(lane, func() {
				if inside[l].Add(1) > 1 {
					t.Errorf("%s runs twice at once", lane)
				}
				mu.Lock()
				got[lane] = append(got[lane], i)
				mu.Unlock()
				inside[l].Add(-1)
			})
		}
	}
	set.Wait()
	for lane, order := range got {
		if len(order) != depth {
			t.Fatalf("%s ran %d times, want %d", lane, len(order), depth)
		}
		for i, n := range order {
			if i != n {
				t.Fatalf("%s ran %d as number %d", lane, n, i)
			}
		}
	}
}

func TestSet_LanesDoNotWaitForEachOther(t *testing.T) {
	var set lanes.Set
	release := make(chan struct{})
	set.Go("a", func() { <-release })
	set.Go("b", func() { close(release) })
	set.Wait()

	release = make(chan struct{})
	set.Go("", func() { <-release })
	set.Go("", func() { close(release) })
	set.Wait()
}

func TestSet_LaneGoesOnWhenWorkEndsItsGoroutine(t *testing.T) {
	var set lanes.Set
	ran := false
	begin := make(chan struct{})
	set.Go("a", func() { <-begin; runtime.Goexit() })
	set.Go("a", func() { ran = true })
	close(begin)
	set.Wait()
	if !ran {
		t.Error("what waited in the lane did not run")
	}
}

func TestSet_CanBeUsedAgainAfterWait(t *testing.T) {
	var set lanes.Set
	var ran atomic.Int32
	for range 3 {
		for range 50 {
			set.Go("", func() { ran.Add(1) })
		}
		set.Wait()
	}
	if ran.Load() != 150 {
		t.Errorf("%d ran, want 150", ran.Load())
	}
}
