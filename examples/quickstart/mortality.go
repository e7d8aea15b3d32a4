package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// mortality is the dedup store as seen by handlers that may die. A dead handler's claim can neither be extended nor
// settled, as if its process were gone; its lease ends by itself. It also notes which charges had their outcome stored.
type mortality struct {
	dedupstore.Store
	shop *shop

	mu      sync.Mutex
	dead    map[uint64]bool   // fences of dead runs
	entries map[string]int64  // ledger entries by order, of the latest run
	kills   map[string]string // orders that were charged by a run that then died, and how
}

func newMortality(store dedupstore.Store, s *shop) *mortality {
	return &mortality{Store: store, shop: s, dead: map[uint64]bool{}, entries: map[string]int64{}, kills: map[string]string{}}
}

var errDead = errors.New("injected: the handler's process is dead")

// Extend implements dedupstore.Store.
func (m *mortality) Extend(ctx context.Context, c dedupstore.Claim, lease time.Duration) error {
	if m.isDead(c) {
		return errDead
	}
	return m.Store.Extend(ctx, c, lease)
}

// Settle implements dedupstore.Store.
func (m *mortality) Settle(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if m.isDead(c) {
		return errDead
	}
	err := m.Store.Settle(ctx, c, s)
	if _, finished := s.(dedupstore.Finish); err == nil && finished {
		return m.settled(ctx, c.Key.ID)
	}
	return err
}

func (m *mortality) isDead(c dedupstore.Claim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead[c.Fence]
}

// charged notes the ledger entry of a run.
func (m *mortality) charged(orderID string, entry int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[orderID] = entry
}

// settled notes that the outcome of the order's latest charge is stored.
func (m *mortality) settled(ctx context.Context, orderID string) error {
	m.mu.Lock()
	entry, ok := m.entries[orderID]
	m.mu.Unlock()
	if !ok {
		return nil
	}
	_, err := m.shop.db.ExecContext(ctx, `INSERT INTO settled (entry, at) VALUES (?, ?) ON CONFLICT DO NOTHING`, entry, time.Now().UnixMicro())
	return err
}

// kill ends a run between its effect and its outcome.
func (m *mortality) kill(orderID string, run oncemill.Run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead[run.Fence] = true
	m.kills[orderID] = fmt.Sprintf("charged by attempt %d, whose process died before the outcome was stored", run.Attempt)
}

// dieAfterWrite kills the run of an order whose fate that is, once.
func (s *stack) dieAfterWrite(msg *message.Message, orderID string) error {
	if s.fates[orderID] != diesAfterWrite {
		return nil
	}
	first, err := s.shop.once(context.WithoutCancel(msg.Context()), s.name, orderID)
	if err != nil || !first {
		return err
	}
	s.death.kill(orderID, oncemill.FromContext(msg.Context()))
	return errDead
}
