package pgoutbox_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// early ends leases long before their batches are published and settled, as relays find it that were frozen in between.
type early struct {
	*pgoutbox.Outbox
	faults *atomic.Bool
}

func (e early) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	if e.faults.Load() {
		r.Lease = rand.N(20 * time.Millisecond)
	}
	return e.Outbox.Lease(ctx, r)
}

// frozenBroker takes messages after a pause of the relay, refuses some, answers some not at all, and gets some only when their
// relay has stopped waiting.
type frozenBroker struct {
	faults  atomic.Bool
	mu      sync.Mutex
	arrived map[string][]string // of each key, the first copies
	copies  map[string]int
	late    sync.WaitGroup
}

func (b *frozenBroker) Publish(_ context.Context, messages ...producer.Message) error {
	if b.faults.Load() && rand.N(3) == 0 {
		<-time.After(rand.N(30 * time.Millisecond)) // the relay is frozen
	}
	var failures []producer.Failure
	for i, m := range messages {
		fails := func(unknown bool) {
			failures = append(failures, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no"), Unknown: unknown})
		}
		switch n := rand.N(20); {
		case !b.faults.Load() || n > 5:
			b.arrive(m)
		case n == 0:
			b.arrive(m)
			fails(true)
		case n == 1:
			b.late.Go(func() {
				<-time.After(rand.N(50 * time.Millisecond))
				b.arrive(m)
			})
			fails(true)
		default:
			fails(n > 3)
		}
	}
	if len(failures) > 0 {
		return &producer.PublishError{Failures: failures}
	}
	return nil
}

func (b *frozenBroker) arrive(m producer.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.copies[m.ID]++; b.copies[m.ID] == 1 {
		b.arrived[m.Key] = append(b.arrived[m.Key], m.ID)
	}
}

func (b *frozenBroker) first() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.copies)
}

func TestOrdered_LeasesThatEndUnderFrozenRelaysKeepTheOrderOfFirstCopies(t *testing.T) {
	t.Parallel()
	keys, each := 4, 30
	if proof() {
		each = 1000
	}
	box, pool := orderedBox(t, pgoutbox.Config{})
	b := &frozenBroker{arrived: map[string][]string{}, copies: map[string]int{}}
	b.faults.Store(true)
	t.Cleanup(b.late.Wait)
	cfg := relaytest.Quick()
	cfg.BatchSize, cfg.MaxAttempts = 7, 10_000
	for range 3 {
		relaytest.Start(t, early{boxIn(t, pool, pgoutbox.Config{Ordered: true}), &b.faults}, b, cfg)
	}
	want := map[string][]string{}
	for i := range keys * each {
		key := strconv.Itoa(rand.N(keys))
		m := keyed(key, strconv.Itoa(i))
		write(t, box, pool, m)
		want[key] = append(want[key], m.ID)
		box.Wake()
	}
	relaytest.Eventually(t, "half of it is published in spite of the faults",
		func() bool { return b.first() >= keys*each/2 })
	b.faults.Store(false)
	relaytest.Eventually(t, "everything is published", func() bool { return stats(t, box).Pending == 0 })
	b.late.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	copies := 0
	for key, ids := range want {
		if got := b.arrived[key]; !slices.Equal(got, ids) {
			t.Errorf("key %s: first copies arrived as %v, committed as %v", key, got, ids)
		}
	}
	for _, n := range b.copies {
		copies += n - 1
	}
	if copies == 0 {
		t.Error("there were no copies: no lease ended too early")
	}
	if n := leased(t, pool); n != 0 {
		t.Errorf("%d rows are leased still", n)
	}
	t.Logf("%d messages, %d copies", keys*each, copies)
}
