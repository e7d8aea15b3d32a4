package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// runRelays runs two relays on the shop's outbox until ctx ends. A relay that dies is replaced.
func runRelays(ctx context.Context, s *shop, publisher producer.Publisher, fates map[string]fault, telemetry oncemill.Telemetry) error {
	var all sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = runRelay(ctx, s, publisher, fates, telemetry)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// runRelay runs one relay until it dies or ctx ends.
func runRelay(ctx context.Context, s *shop, publisher producer.Publisher, fates map[string]fault, telemetry oncemill.Telemetry) error {
	ctx, die := context.WithCancel(ctx)
	defer die()
	store := &mortalOutbox{Store: s.box, shop: s, fates: fates, orders: map[int64]string{}, die: die}
	relay, err := outbox.NewRelay(store, publisher, outbox.Config{
		BatchSize: 20, PublishTimeout: time.Second, Lease: 3 * time.Second,
		Backoff: oncemill.Backoff{Min: 50 * time.Millisecond, Max: time.Second},
		Logger:  slog.New(slog.DiscardHandler), Telemetry: telemetry,
	})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	return relay.Run(ctx)
}

// A mortalOutbox is the outbox as seen by a relay that may die after it has published and before it has marked its rows.
type mortalOutbox struct {
	outbox.Store
	shop  *shop
	fates map[string]fault
	die   func()

	mu     sync.Mutex
	orders map[int64]string // by row
	dead   bool
}

var errRelayDead = errors.New("injected: the relay is dead")

// Woken implements outbox.Waker.
func (m *mortalOutbox) Woken() <-chan struct{} { return m.shop.box.Woken() }

// Lease implements outbox.Store.
func (m *mortalOutbox) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	rows, err := m.Store.Lease(ctx, r)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, row := range rows {
		m.orders[row.Number] = row.Message.ID
	}
	return rows, err
}

// Settle implements outbox.Store.
func (m *mortalOutbox) Settle(ctx context.Context, token string, results []outbox.Result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range results {
		id := m.orders[r.Number]
		if m.dead || r.State != outbox.Published || m.fates[id] != relayDies {
			continue
		}
		first, err := m.shop.once(ctx, "relay", id)
		if err != nil {
			return err
		}
		m.dead = m.dead || first
	}
	if m.dead {
		m.die()
		return errRelayDead // its rows stay leased until the lease ends
	}
	return m.Store.Settle(ctx, token, results)
}
