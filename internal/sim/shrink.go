package sim

import (
	"maps"
	"testing"
	"time"
)

// Shrink makes no more histories than that, and takes no longer.
const (
	mostRuns = 400
	longest  = 20 * time.Second
)

// Shrink makes a history that breaks a promise smaller. It leaves out faults, as long as the same promise breaks.
func Shrink(t *testing.T, r Result) Result {
	t.Helper()
	drop, runs, began := map[string]bool{}, 0, time.Now()
	goesOn := func() bool { return runs < mostRuns && time.Since(began) < longest }
	for size := (len(r.Faults) + 1) / 2; size > 0 && goesOn(); {
		smaller := false
		for begin := 0; begin < len(r.Faults) && goesOn(); runs++ {
			tried := maps.Clone(drop)
			for _, fault := range r.Faults[begin:min(begin+size, len(r.Faults))] {
				tried[fault] = true
			}
			if again := Run(t, r.Seed, tried); again.Broken != nil && again.Broken.Promise == r.Broken.Promise {
				r, drop, smaller = again, tried, true
			} else {
				begin += size
			}
		}
		if size == 1 && !smaller {
			break
		}
		size = max(1, size/2)
	}
	return r
}
