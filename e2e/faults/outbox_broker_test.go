package faults_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
)

// Full: 15,000 messages, the server that leads the stream killed 8 times, with SIGKILL. Reduced, the servers are embedded,
// which step down when they are shut down.
func TestOutbox_LeaderKilledWhilePublishingLosesNothing(t *testing.T) {
	t.Parallel()
	cluster := newNATSCluster(t)
	db := postgrestest.Shared(t).NewDatabase(t)
	cfg := shortLease()
	cfg.PublishTimeout, cfg.Lease = 2*time.Second, 6*time.Second
	m := newMint(t, db.DSN(), cluster.URLs(), cluster.JetStream(), jetstream.StreamConfig{Replicas: 3}, true, cfg)
	relays := m.startAll(full(3, 2))
	messages, kills := full(15_000, 600), full(8, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var selling sync.WaitGroup
	defer selling.Wait()
	defer cancel()
	selling.Go(func() { m.sell(ctx, messages, 4, 20*time.Millisecond) })
	for i := range kills {
		target := (2*i + 1) * messages / (2 * kills)
		until(t, fmt.Sprintf("%d messages", target), func() bool { return m.written() >= target })
		cluster.AwaitCurrent(ordersStream)
		start := time.Now()
		node := cluster.KillLeader(ordersStream)
		cluster.StreamLeader(ordersStream)
		t.Logf("the leader was killed; another one was there after %v", time.Since(start))
		cluster.Restart(node)
	}
	selling.Wait()
	cluster.AwaitCurrent(ordersStream)
	t.Logf("the outbox was empty %v after the last message", m.drain())
	m.finish(relays...).MustExplain(t, ledger.AnswerUnknown, ledger.LeaseSlow)
}

// Full: 30 s, with the relay's default pauses. Writers go on meanwhile, and a relay is killed: what its client kept for the
// broker is gone. Refusals make rows dead soon here, which silence must not.
func TestOutbox_BrokerOutageIsHeldOutAndCaughtUpWith(t *testing.T) {
	t.Parallel()
	broker := natstest.Start(t)
	db := postgrestest.Shared(t).NewDatabase(t)
	short := shortLease()
	short.Backoff.Max = time.Second
	cfg := full(outbox.Config{Lease: time.Minute, Backoff: oncemill.Backoff{Max: time.Minute}}, short) // the defaults, and others
	cfg.MaxAttempts = 2
	m := newMint(t, db.DSN(), []string{broker.URL()}, broker.JetStream(), jetstream.StreamConfig{}, false, cfg)
	c := &chaos{mint: m, alive: m.startAll(2)}
	m.sell(t.Context(), 100, 4, 5*time.Millisecond)
	m.drain()

	broker.Shutdown()
	ctx, cancel := context.WithCancel(t.Context())
	var selling sync.WaitGroup
	defer selling.Wait()
	defer cancel()
	selling.Go(func() { m.sell(ctx, 1<<30, 4, 30*time.Millisecond) })
	lasts(full(30*time.Second, 3*time.Second))
	until(t, "a backlog", func() bool { return m.stats().Pending >= 100 })
	backlog := m.stats()
	c.kill(0)
	broker.Restart()
	start := time.Now()
	cancel()
	selling.Wait()
	until(t, "the broker to answer", func() bool { _, err := m.js.Stream(t.Context(), ordersStream); return err == nil })
	m.drain()
	took := time.Since(start)
	b := m.finish(c.alive...)
	b.MustExplain(t, ledger.AnswerUnknown, ledger.RelayKilled, ledger.LeaseSlow)
	t.Logf("a backlog of %d messages was drained %v after the broker came back", backlog.Pending, took)
	if backlog.Pending < 100 || took > cfg.Backoff.Max+full(20*time.Second, time.Minute) {
		t.Errorf("a backlog of %d was drained in %v, want one of 100 in Backoff.Max (%v) and a little", backlog.Pending, took, cfg.Backoff.Max)
	}
}
