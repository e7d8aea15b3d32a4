package pace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

func TestPace_DoublesUpToTheLongestAndBeginsAgain(t *testing.T) {
	p := pace.Pace{Shortest: time.Second, Longest: 5 * time.Second}
	for range 2 {
		for _, want := range []int{1, 2, 4, 5, 5} {
			if got := p.Next(); got != time.Duration(want)*time.Second {
				t.Errorf("pause %v, want %d s", got, want)
			}
		}
		p.Reset()
	}
	if got := pace.Backoff(time.Hour, 2*time.Hour, 1000); got != 2*time.Hour {
		t.Errorf("the thousandth pause is %v", got)
	}
	if got := pace.Backoff(1<<33+1, time.Minute, 32); got != time.Minute { // 2^31 times that overflows to 2.1 s
		t.Errorf("a pause is %v, although the one before was longer", got)
	}
	for range 1000 {
		if got := pace.Jitter(time.Second); got < 800*time.Millisecond || got > time.Second {
			t.Fatalf("a second with jitter is %v", got)
		}
	}
}

func TestSleep_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if pace.Sleep(ctx, time.Minute) || time.Since(began) != time.Second {
			t.Errorf("slept %v of a minute although the context ended after a second", time.Since(began))
		}
		if !pace.Sleep(t.Context(), time.Minute) {
			t.Error("a whole sleep is reported as cut short")
		}
	})
}
