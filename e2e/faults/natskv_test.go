package faults_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore/natskv"
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
	r.finish().mustExplain(t)
}
