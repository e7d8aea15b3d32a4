package franz

import (
	"testing"
	"testing/synctest"
	"time"
)

// The clock of a process may have been far behind when it took a copy from a retry topic, and be set right while that waits.
func TestGate_ClockThatIsSetEndsTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		began := time.Now()
		open := g.waitWhile(func() time.Duration {
			if time.Since(began) > lookAgain/2 {
				return 0
			}
			return 10 * 365 * 24 * time.Hour
		})
		if waited := time.Since(began); !open || waited > lookAgain {
			t.Errorf("open %v after %v, want true after %v at most", open, waited, lookAgain)
		}
	})
}

func TestGate_WaitEndsWhenDueOrShut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		began := time.Now()
		for _, d := range []time.Duration{-time.Hour, 0, time.Second, lookAgain, 5*lookAgain + time.Millisecond} {
			before := time.Now()
			if open, waited := g.waitFor(before.Add(d)), time.Since(before); !open || waited != max(d, 0) {
				t.Errorf("of %v, open %v after %v", d, open, waited)
			}
		}
		time.AfterFunc(5*lookAgain, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.shut()
		})
		if open := g.waitFor(began.AddDate(10, 0, 0)); open {
			t.Error("the end of the worker was not noticed")
		}
		if g.waitFor(began) {
			t.Error("shut, and open for what is due")
		}
	})
}
