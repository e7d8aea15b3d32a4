package franz

import (
	"testing"
	"testing/synctest"
	"time"
)

// The clock of a process may have been far behind when it took a copy from a retry topic, and be set right while that waits.
func TestAfter_ClockThatIsSetEndsTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, ready := time.Now(), make(chan struct{})
		after(nil, func() time.Duration {
			if time.Since(began) > lookAgain/2 {
				return 0
			}
			return 10 * 365 * 24 * time.Hour
		}, func() { close(ready) })
		<-ready
		if waited := time.Since(began); waited > lookAgain {
			t.Errorf("ready after %v, want %v at most", waited, lookAgain)
		}
	})
}

func TestAfter_WaitEndsWhenDueOrHalted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		halted := make(chan struct{})
		until := func(due time.Time) <-chan struct{} {
			ready := make(chan struct{})
			after(halted, func() time.Duration { return time.Until(due) }, func() { close(ready) })
			return ready
		}
		for _, d := range []time.Duration{-time.Hour, 0, time.Second, lookAgain, 5*lookAgain + time.Millisecond} {
			before := time.Now()
			<-until(before.Add(d))
			if waited := time.Since(before); waited != max(d, 0) {
				t.Errorf("of %v, ready after %v", d, waited)
			}
		}
		due := time.Now().Add(5 * lookAgain)
		late := until(due)
		close(halted)
		<-time.After(time.Until(due) + lookAgain)
		select {
		case <-late:
			t.Error("the end of the worker was not noticed")
		case <-until(due):
			t.Error("the worker has ended, and what is due is ready")
		default:
		}
	})
}

// Places are given in the order in which they were asked for, never more than there are. A record that does not need
// its place leaves it to the next.
func TestPlaces(t *testing.T) {
	t.Parallel()
	p := places{free: 2}
	var started []int
	for i := range 6 {
		p.add(startFunc(func() bool {
			started = append(started, i)
			return i != 1
		}))
	}
	for _, want := range []int{3, 4, 5, 6, 6} {
		p.fill()
		if len(started) != want || started[want-1] != want-1 {
			t.Fatalf("started %v, want %d", started, want)
		}
		p.leave()
	}
}

type startFunc func() bool

func (f startFunc) start() bool { return f() }
