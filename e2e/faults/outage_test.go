package faults_test

import (
	"fmt"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
)

// backlog waits until the first n messages are acknowledged.
func (r *rig) backlog(n int) {
	r.t.Helper()
	next := 0
	until(r.t, fmt.Sprintf("the first %d messages to be acknowledged", n), func() bool {
		for next < n && r.Message(orderID(next)).Over {
			next++
		}
		return next == n
	})
}

// asked is how often the store was asked for a claim so far, and how many messages were offered.
func (r *rig) asked() (claims, published int) {
	claims = r.Sum().Claims
	r.mu.Lock()
	defer r.mu.Unlock()
	return claims, r.published
}

// begun is how many runs had their effect in a period.
func (r *rig) begun(from, to time.Time) int {
	return r.Count(func(r ledger.Run) bool { return r.Effect.After(from) && r.Effect.Before(to) })
}

// raced says whether the race detector watches.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Full: 60 s at 2,000 messages a second, with default lease and hold, on a machine that does nothing else meanwhile.
// With the race detector, under which everything is several times slower, it is 500 a second. Deliveries are held: each
// slot of the window calls Process once a hold, and all of them together ask the store a few times a second. A run that
// the outage kept from being recorded for a lease may run again.
func TestRedis_OutageIsHeldOutAndCaughtUpWith(t *testing.T) {
	if !proof {
		t.Parallel()
	}
	rate := full(2000, 500)
	if raced() {
		rate = 500
	}
	const window, keep = 512, 10 * time.Second
	outage := full(time.Minute, 6*time.Second)
	// What was granted before may begin a little later, and batches pass one that the client still repeats.
	const grace = 3 * time.Second
	server := newDurable(t, "everysec")
	r := newRig(t, client(t, server.Addr), setup{rate: rate, window: window, lease: full(0, 3*time.Second)})
	r.progress(500)

	if err := server.Process().Stop(); err != nil { // it writes what it has: nothing is lost by this
		t.Fatal(err)
	}
	down := time.Now()
	lasts(grace)
	deliveries := r.deliveries.Load()
	claims, _ := r.asked()
	lasts(outage - grace)
	deliveries = r.deliveries.Load() - deliveries
	after, _ := r.asked()
	claims = after - claims
	up := time.Now()
	server.Restart()

	back := time.Now()
	_, offered := r.asked()
	r.backlog(offered)
	took := time.Since(back)
	b := r.finish()
	b.MustExplain(t, ledger.LostOutcome)
	seconds := up.Sub(down).Seconds()
	t.Logf("outage of %.1f s: %d deliveries and %d claims after its first %v; %d messages caught up with in %v",
		seconds, deliveries, claims, grace, offered, took)
	if n := r.begun(down.Add(grace), up); n > 0 {
		t.Errorf("%d handlers ran during the outage", n)
	}
	if most := int64(window * (1 + seconds/keep.Seconds())); deliveries > most {
		t.Errorf("%d deliveries during the outage, want at most %d: one a slot and hold", deliveries, most)
	}
	if most := int(5 * seconds); claims > most {
		t.Errorf("%d claims during the outage, want at most %d: 5 a second", claims, most)
	}
	if most := full(10*time.Second, waitLimit); took > most {
		t.Errorf("the backlog was caught up with in %v, want at most %v", took, most)
	}
}
