package franz_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/franz"
)

// A slow store grants claims at once. From when on it is slow, it says so when it has to answer.
type slow struct {
	dedupstore.Store
	slow   atomic.Bool
	answer chan struct{}

	mu      sync.Mutex
	granted int
	open    int   // granted and not settled
	most    int   // of those, at a time
	batches []int // how many claims traveled together
}

func (s *slow) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := s.Store.Claim(ctx, requests)
	s.mu.Lock()
	for _, r := range results {
		if r.Err == nil && r.Answer.Status == dedupstore.AcquiredRun {
			s.granted++
			s.open++
			s.most = max(s.most, s.open)
		}
	}
	s.batches = append(s.batches, len(requests))
	s.mu.Unlock()
	if s.slow.Load() {
		<-s.answer
	}
	return results
}

func (s *slow) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	s.mu.Lock()
	s.open -= len(settlings)
	s.mu.Unlock()
	return s.Store.Settle(ctx, settlings)
}

func (s *slow) claims() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted
}

// A record that is claimed when its partition goes does not start, does not count, and is not committed: the next owner
// runs it at once.
func TestWorker_ClaimThatIsGrantedWhileItsPartitionIsRevokedIsGivenBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	store := &slow{Store: b.store, answer: make(chan struct{})}
	b.store = store
	b.produce(0, 2, 2, 0) // a store that has answered is known to work: what comes then is claimed ahead
	once := b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: 1}})
	first := b.start(once, b.handler(byPartition, nil), franz.Config{})
	until(t, "the first records", func() bool {
		got := b.committed("orders")
		return got[0] == 1 && got[1] == 1
	})
	store.slow.Store(true)
	b.produce(2, 2, 2, 0)
	until(t, "both claims", func() bool { return store.claims() == 4 })
	release := make(chan struct{})
	second := b.start(once, b.handler(byPartition, func(context.Context, string, int) error {
		<-release
		return nil
	}), franz.Config{})
	until(t, "one partition to be taken from the first member", func() bool {
		g := b.cluster.GroupInfo(group)
		return g != nil && g.State == "Stable" && len(g.Members) == 2 && g.NumAssigned() == 1
	})
	lasts(300 * time.Millisecond) // for its callback
	if runs := b.started(); runs != 2 {
		t.Fatalf("%d handlers have started without an answer", runs-2)
	}
	close(store.answer)
	until(t, "its record to run, long before a lease ends", func() bool { return b.started() == 4 })
	until(t, "the partition that stays", func() bool { return b.finished() == 3 })
	until(t, "its commit", func() bool {
		got := b.committed("orders")
		return got[0]+got[1] == 3
	})
	close(release)
	until(t, "the record that went", func() bool { return b.finished() == 4 })
	first.leave()
	second.leave()
	b.wantOnce(t, 4)
	if runs := b.started(); runs != 4 {
		t.Errorf("%d runs, want 4", runs)
	}
}

// Records that come together are claimed together, but never more than there are places.
func TestWorker_ClaimsWhatCanStart(t *testing.T) {
	t.Parallel()
	const n, places = 200, 20
	b := newBench(t, 1)
	store := &slow{Store: b.store}
	b.store = store
	b.produce(0, n, 1, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{Order: franz.PerKey, MaxInFlight: places})
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	b.wantOnce(t, n)
	store.mu.Lock()
	defer store.mu.Unlock()
	if store.granted != n || store.open != 0 || store.most > places {
		t.Errorf("%d claims, %d not settled, %d at a time, want %d, 0 and %d at most", store.granted, store.open, store.most, n, places)
	}
	if len(store.batches) > n/2 {
		t.Errorf("claimed in batches of %v, want them to travel together", store.batches)
	}
}
