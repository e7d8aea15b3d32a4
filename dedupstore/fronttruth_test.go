package dedupstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A mess is a cheap store that fails in every way: by errors before and after an operation is applied, by hanging, by
// losing everything, and by going back to what it was.
type mess struct {
	t     testing.TB
	rand  *rand.Rand
	mu    sync.Mutex
	parts []*dedupstore.Memory // each knows what it was told while it was used
	now   *dedupstore.Memory
	calm  bool
}

func (m *mess) pick() (s *dedupstore.Memory, hangs bool, before, after error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calm {
		return m.now, false, nil, nil
	}
	switch n := m.rand.IntN(100); {
	case n < 3: // lost
		m.now = newMemory(m.t, 0)
		m.parts = append(m.parts, m.now)
	case n < 10: // restored, or a replica that is behind
		m.now = m.parts[m.rand.IntN(len(m.parts))]
	case n < 15:
		return m.now, false, errCheap, nil
	case n < 20:
		return m.now, false, nil, errCheap
	case n < 22:
		return m.now, true, nil, nil
	}
	return m.now, false, nil, nil
}

func (m *mess) do(ctx context.Context, operation func(s *dedupstore.Memory) error) error {
	s, hangs, before, after := m.pick()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if before != nil {
		return before
	}
	return errors.Join(operation(s), after)
}

func (m *mess) Claim(ctx context.Context, r dedupstore.Request) (a dedupstore.Answer, err error) {
	err = m.do(ctx, func(s *dedupstore.Memory) (err error) {
		a, err = s.Claim(ctx, r)
		return err
	})
	return a, err
}

func (m *mess) Extend(ctx context.Context, c dedupstore.Claim, lease time.Duration) error {
	return m.do(ctx, func(s *dedupstore.Memory) error { return s.Extend(ctx, c, lease) })
}

func (m *mess) Settle(ctx context.Context, c dedupstore.Claim, st dedupstore.Settlement) error {
	return m.do(ctx, func(s *dedupstore.Memory) error { return s.Settle(ctx, c, st) })
}

// A consumer delivers copies of messages, and crashes, errs, sleeps too long and comes back as it likes.
type frontConsumer struct {
	f       *frontRig
	rand    *rand.Rand
	zombies []dedupstore.Claim
}

// deliver handles one copy, and reports whether it may be acknowledged.
func (c *frontConsumer) deliver(t *testing.T, id string, orderly bool) bool {
	r := frontRequest(id)
	r.Lease, r.MaxAttempts = 10*time.Second, 1<<20
	a, err := c.f.Claim(t.Context(), r)
	if err != nil {
		t.Errorf("claim: %v", err)
		return false
	}
	switch a.Status {
	case dedupstore.Done:
		if n := c.f.inbox.All()[id]; n != 1 || a.Outcome.Kind != dedupstore.Succeeded || string(a.Outcome.Result) != "paid" {
			t.Errorf("%s is answered %+v with %d effects", id, a.Outcome, n)
		}
		return true
	case dedupstore.AcquiredPublish:
		if len(a.Outcome.Produced) != 1 || a.Outcome.Produced[0].Payload == nil {
			t.Errorf("%s: to publish: %+v", id, a.Outcome.Produced)
		}
		return c.f.Settle(t.Context(), a.Claim, dedupstore.Published{Retention: time.Hour}) == nil
	case dedupstore.AcquiredRun:
		return c.run(t, a.Claim, orderly)
	}
	return false
}

func (c *frontConsumer) run(t *testing.T, claim dedupstore.Claim, orderly bool) bool {
	fate := c.rand.IntN(10)
	if orderly {
		fate = 9
	}
	switch fate {
	case 0: // it dies, or comes back later
		c.zombies = append(c.zombies, claim)
		return false
	case 1:
		if err := c.f.Settle(t.Context(), claim, dedupstore.Release{Delay: time.Duration(c.rand.IntN(5)) * time.Second}); err != nil && !errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("release: %v", err)
		}
		return false
	case 2:
		time.Sleep(claim.Lease / 2)
		_ = c.f.Extend(t.Context(), claim, claim.Lease)
	case 3:
		time.Sleep(2 * claim.Lease)
	}
	var produced []dedupstore.Produced
	if c.rand.IntN(3) == 0 {
		produced = append(produced, output)
	}
	if err := c.f.pays(claim, produced...); err != nil {
		return false
	}
	if len(produced) == 0 {
		return true
	}
	if fate == 4 { // it dies before it publishes
		return false
	}
	return c.f.Settle(t.Context(), claim, dedupstore.Published{Retention: time.Hour}) == nil
}

func TestFront_NeverCostsAnEffectNorAMessage(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { messUp(t, seed) })
		})
	}
}

const messages = 20

func messUp(t *testing.T, seed uint64) {
	f := newFront(t)
	m := &mess{t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: newMemory(t, 0)}
	m.parts = append(m.parts, m.now)
	f.cheap.Store = m
	var group sync.WaitGroup
	for n := range uint64(4) {
		group.Go(func() {
			c := &frontConsumer{f: f, rand: rand.New(rand.NewPCG(seed, 2+n))}
			for range 150 {
				c.deliver(t, fmt.Sprint("m", c.rand.IntN(messages)), false)
				if len(c.zombies) > 0 && c.rand.IntN(5) == 0 {
					_ = f.pays(c.zombies[c.rand.IntN(len(c.zombies))])
				}
				time.Sleep(time.Duration(c.rand.IntN(200)) * time.Millisecond)
			}
		})
	}
	group.Wait()
	m.calm = seed%2 == 0 // it heals, or goes on
	last := &frontConsumer{f: f, rand: rand.New(rand.NewPCG(seed, 99))}
	for i := range messages {
		id, tries := fmt.Sprint("m", i), 0
		for ; !last.deliver(t, id, true) && tries < 1000; tries++ {
			time.Sleep(100 * time.Millisecond)
		}
		if tries == 1000 {
			t.Errorf("%s was never acknowledged", id)
		}
		f.effects(id, 1)
	}
	if s := f.Stats(); s.Failed == 0 || s.Refused == 0 || s.Passed == 0 {
		t.Errorf("nothing happened: %+v", s)
	}
}
