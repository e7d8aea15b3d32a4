package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// Full: the keys are held for a minute, 120 times the AckWait of the consumer. A process works on other messages
// meanwhile.
func TestJetStream_BusyKeysDoNotBurnMaxDeliver(t *testing.T) {
	t.Parallel()
	const lease, busy, orders = 500 * time.Millisecond, 8, 40
	const taken = 12 * lease // of somebody else, who may be slow to renew it
	server := natstest.Start(t)
	s := newShop(t, []string{server.URL()}, server.JetStream(), jetstream.StreamConfig{}, lease, task{
		Handler: "steady", Work: time.Millisecond, Lease: lease, MaxWait: lease / 5, Grace: shutdownGrace, Window: 20,
	})
	ctx, release := context.WithCancel(t.Context())
	ended := make(chan error, busy)
	for i := range busy {
		claim := s.take(orderID(i), taken)
		go func() { ended <- s.holdUntil(ctx, claim, taken) }()
	}
	s.publishOrders(orders)
	w := s.start()
	s.await("the messages that are not held", func() bool { return s.done() >= orders-busy })
	lasts(time.Duration(full(120, 6)) * lease)
	if n := s.done(); n > orders-busy {
		t.Errorf("%d effects of messages that somebody else holds", n-(orders-busy))
	}
	info := natstest.Ask(t, "the consumer's state", func(context.Context) (*jetstream.ConsumerInfo, error) {
		return s.info()
	})
	release()
	for range busy {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	s.await("the messages that were held", func() bool { return s.done() == orders })
	took := time.Since(start)
	deliveries := s.drain()
	s.terminate(w)
	s.checkOnce()
	most := s.redelivered()
	t.Logf("%d messages, %d deliveries, %d of them while %d keys were held; the held ones were done %v after their release, at their %dth delivery at most",
		orders, deliveries, info.Delivered.Consumer, busy, took, most)
	if most >= 5 {
		t.Errorf("a message that was held was delivered %d times: the next time it would have been given up", most)
	}
	if bound := taken + full(8*time.Second, waitLimit); took > bound {
		t.Errorf("the held messages were done %v after their release, want at most %v", took, bound)
	}
}

// take claims a key as somebody else.
func (s *shop) take(id string, lease time.Duration) dedupstore.Claim {
	s.t.Helper()
	a, err := dedupstore.ClaimOne(s.t.Context(), s.store, dedupstore.Request{
		Key: orderKey(id), Owner: "somebody-else-" + id, Lease: lease, Retention: time.Minute, MaxAttempts: 10,
	})
	if err != nil || a.Status != dedupstore.AcquiredRun {
		s.t.Fatalf("claim of %s: %+v, %v", id, a, err)
	}
	return a.Claim
}

// holdUntil keeps a claim until ctx ends, and releases it.
func (s *shop) holdUntil(ctx context.Context, c dedupstore.Claim, lease time.Duration) error {
	detached := context.WithoutCancel(ctx)
	tick := time.NewTicker(lease / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return dedupstore.SettleOne(detached, s.store, c, dedupstore.Release{Uncounted: true})
		case <-tick.C:
		}
		if err := dedupstore.ExtendOne(detached, s.store, dedupstore.Extension{
			Claim: c, Lease: lease, Started: true,
		}); err != nil {
			return err
		}
	}
}

// Messages that wait in the window are kept from coming back while others run. Full: also without an order, where the
// window decides how many run at once.
func TestJetStream_SlowHandlersRunOnce(t *testing.T) {
	t.Parallel()
	type way struct {
		window int
		order  bool
	}
	for _, way := range full([]way{{0, true}, {0, false}, {1, false}, {2, false}}, []way{{0, true}}) {
		t.Run(fmt.Sprintf("%+v", way), func(t *testing.T) {
			t.Parallel()
			server := natstest.Start(t)
			s := newShop(t, []string{server.URL()}, server.JetStream(), jetstream.StreamConfig{}, 8*time.Second, task{
				Handler: "steady", Work: 500 * time.Millisecond, Lease: 8 * time.Second,
				MaxWait: 500 * time.Millisecond, Grace: shutdownGrace, Window: way.window, Order: way.order,
			})
			s.publishOrders(20)
			w := s.start()
			deliveries := s.drain()
			s.terminate(w)
			if runs := s.count(func(ledger.Run) bool { return true }); runs != 20 || deliveries != 20 {
				t.Errorf("%d runs of handlers in %d deliveries, want 20", runs, deliveries)
			}
			s.checkOnce()
		})
	}
}
