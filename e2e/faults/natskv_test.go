package faults_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// Full: 5 kills of the server that leads the bucket, by SIGKILL; reduced, the servers are embedded, and step down when
// they are shut down. Leases last longer than an election: every outcome can be recorded, and nothing runs twice.
func TestNATSKV_LeaderKilledRepeatsNothing(t *testing.T) {
	t.Parallel()
	cluster := newNATSCluster(t)
	js := cluster.JetStream()
	natstest.Ask(t, "the bucket", func(ctx context.Context) (jetstream.Stream, error) {
		return js.CreateStream(ctx, natskv.Bucket("oncemill", 3))
	})
	store, err := natskv.New(js, natskv.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, store, setup{
		rate: 300, lease: 20 * time.Second, keep: 5 * time.Second,
		work: func(context.Context, oncemill.Run) { lasts(2 * time.Millisecond) }, // so that some are under way
	})
	for range full(5, 2) {
		r.progress(200)
		node := cluster.KillLeader("KV_oncemill")
		cluster.StreamLeader("KV_oncemill")
		cluster.Restart(node)
		cluster.AwaitCurrent("KV_oncemill")
	}
	r.progress(200)
	r.finish().MustExplain(t)
}

// Full: 10,000 messages, 50 SIGKILLs of workers. The bucket is in the server that has the messages.
func TestNATSKV_ConsumersKilled(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	server := natstest.Start(t)
	js := server.JetStream()
	createStream(t, js, natskv.Bucket("oncemill", 1))
	s := newShop(t, []string{server.URL()}, js, jetstream.StreamConfig{Replicas: 1}, lease, task{
		Bucket: "oncemill", Handler: "unsteady", Work: 10 * time.Millisecond, Lease: lease, MaxWait: lease / 2,
		Grace: 5 * time.Second, Window: 24,
	})
	m := &massacre{shop: s, killed: map[int]time.Time{}}
	b := m.survives(full(10000, 1000), 200, full(50, 4), 0)
	b.MustExplain(t, ledger.HandlerFailed, ledger.HolderKilled, ledger.LostLease)
	s.mustHaveGivenUpNothing()
}

func openNATSKV(urls []string, bucket string) (dedupstore.Store, func(), error) {
	nc, err := nats.Connect(strings.Join(urls, ","), nats.Timeout(waitLimit), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	s, err := natskv.New(js, natskv.Config{Bucket: bucket})
	return s, nc.Close, err
}
