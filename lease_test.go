package oncemill

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A claim that waited for long is granted while its lease is about to be cut: its work goes on.
func TestLease_ThatIsRenewedMeanwhileIsNotCut(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	g := &Guard{log: slog.New(slog.NewTextHandler(&log, nil))}
	l := &lease{claim: &dedupstore.Claim{Lease: time.Minute}, deadline: time.Now()}
	if _, cut := l.due(time.Now()); !cut {
		t.Fatal("a lease that ends now is not to be cut")
	}
	l.setDeadline(time.Now(), time.Minute)
	l.handler = cancelFunc(func(error) { t.Error("the work of a lease that holds was cancelled") })
	g.cut(l)
	if log.Len() > 0 {
		t.Errorf("the log says %q", log.String())
	}
}

func TestHeartbeat_LooksAtNothingWithoutLeases(t *testing.T) {
	t.Parallel()
	h := &heartbeat{guard: &Guard{}, every: time.Hour, timer: time.AfterFunc(time.Hour, func() {})}
	h.timer.Stop()
	if h.look(); h.timer.Stop() {
		t.Error("it will look again")
	}
}

// The end of a host's name tells pods apart, and so it is what is kept.
func TestHolder_KeepsTheEndOfALongName(t *testing.T) {
	t.Parallel()
	long := holder(strings.Repeat("x", 2*dedupstore.MaxHolder)+"~ pod-7\n", nil)
	if len(long) != dedupstore.MaxHolder || !strings.Contains(long, "x~pod-7:") {
		t.Errorf("the holder is %q", long)
	}
	if short := holder("pod-7", nil); !strings.HasPrefix(short, "pod-7:") {
		t.Errorf("the holder is %q", short)
	}
}

// An earlier renewal may be answered after a later one.
func TestLease_AnOlderRenewalShortensNothing(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGuard(store, Policy{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	now := time.Now()
	l := &lease{claim: &dedupstore.Claim{Lease: time.Minute}, renewing: 2, still: make(chan struct{})}
	g.extended(l, now, nil)
	g.extended(l, now.Add(-30*time.Second), nil)
	if left := l.ends().Sub(now); left != time.Minute {
		t.Errorf("it lasts for %v from the later one, want a minute", left)
	}
}

func TestHeartbeat_ForgetsALeaseAmongOthers(t *testing.T) {
	t.Parallel()
	h := &heartbeat{guard: &Guard{}, every: time.Hour}
	leases := [4]lease{}
	for i := range leases {
		h.add(&leases[i])
	}
	for _, gone := range []int{1, 3, 0} { // in the middle, the newest, the oldest
		h.remove(&leases[gone])
	}
	if h.first != &leases[2] || h.first.next != nil || h.first.prev != nil || h.leases != 1 {
		t.Errorf("it keeps %d leases, from %p to %p", h.leases, h.first, h.first.next)
	}
	if h.remove(&leases[2]); h.timer.Stop() {
		t.Error("it will look at nothing")
	}
}

// A run whose lease is kept again is as new as its work.
func TestHeartbeat_ForgetsSinceWhenARunIsAtWork(t *testing.T) {
	t.Parallel()
	h := &heartbeat{guard: &Guard{}, every: time.Hour}
	l := &lease{work: work{begins: true, began: time.Now()}}
	h.add(l)
	if h.remove(l); l.work != (work{}) {
		t.Errorf("it remembers %+v", l.work)
	}
}

// Before its handler starts, a lease that could not be renewed in time may still be. Afterwards the handler was told.
func TestLease_RenewalUndoesACutThatNobodyWasToldOf(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGuard(store, Policy{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, told := range []bool{false, true} {
		now := time.Now()
		l := &lease{claim: &dedupstore.Claim{Lease: time.Minute}, deadline: now, renewal: now.Add(time.Hour)}
		if told {
			l.handler = cancelFunc(func(error) {})
		}
		if _, cut := l.due(now); !cut {
			t.Fatal("a lease that ends now is not cut")
		}
		l.renewing, l.still = 1, make(chan struct{})
		if g.extended(l, now, nil); l.wasCancelled() != told {
			t.Errorf("its handler was told: %v; it counts as cancelled: %v", told, l.wasCancelled())
		}
	}
}

// A handler whose lease was cut while its context was made is told at once.
func TestLease_ThatIsCutCancelsWorkThatBegins(t *testing.T) {
	t.Parallel()
	var cause error
	l := &lease{cancelled: true}
	if l.workUnder(cancelFunc(func(err error) { cause = err })); cause != ErrClaimLost { //nolint:errorlint // itself
		t.Errorf("it was cancelled with %v", cause)
	}
}
