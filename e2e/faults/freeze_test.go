package faults_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A trap holds first runs of messages that come twice, whatever becomes of their leases.
type trap struct {
	mu     sync.Mutex
	open   chan struct{} // closed when the runs may end; nil: nothing is caught
	caught map[dedupstore.Key]uint64
}

// size is how many runs a trap holds.
const size = 8

// set catches runs from now on.
func (p *trap) set() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open, p.caught = make(chan struct{}), map[dedupstore.Key]uint64{}
}

// release lets the runs end.
func (p *trap) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.open)
	p.open = nil
}

// full says whether as many are caught as are wanted.
func (p *trap) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.caught) == size
}

// hold is what a handler does.
func (p *trap) keep(_ context.Context, r oncemill.Run) {
	p.mu.Lock()
	open := p.open
	catch := open != nil && r.Attempt == 1 && len(p.caught) < size && strings.HasSuffix(r.Key.ID, "5")
	if catch {
		p.caught[r.Key] = r.Fence
	}
	p.mu.Unlock()
	if catch {
		<-open
	}
}

// Full: 10 times. Handlers that ignore their context outlive their leases, and end when others have taken over.
func TestRedis_FrozenLongerThanALeaseZombiesAreRefused(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	server := redistest.Start(t, "--appendonly", "no")
	var p trap
	r := newRig(t, client(t, server.Addr), setup{rate: 200, lease: lease, keep: 2 * lease, work: p.keep})
	times := full(10, 1)
	for range times {
		p.set()
		until(t, "runs to be caught", p.full)
		if err := server.Process().Pause(); err != nil {
			t.Fatal(err)
		}
		lasts(2 * lease)
		if err := server.Process().Resume(); err != nil {
			t.Fatal(err)
		}
		until(t, "others to take over", func() bool { return overtaken(r.Ledger, p.caught) == size })
		p.release()
		r.progress(100)
	}
	b := r.finish()
	b.MustExplain(t, ledger.LostLease, ledger.LostOutcome)
	if n := r.Ended(ledger.Refused); n < size*times {
		t.Errorf("%d zombies were refused, want at least %d", n, size*times)
	}
}

// overtaken is how many of the keys have a run with an effect after the given fence.
func overtaken(l *ledger.Ledger, fences map[dedupstore.Key]uint64) (n int) {
	for key, fence := range fences {
		if slices.ContainsFunc(l.Message(key.ID).Runs, func(r ledger.Run) bool { return r.Fence > fence && r.Did() }) {
			n++
		}
	}
	return n
}
