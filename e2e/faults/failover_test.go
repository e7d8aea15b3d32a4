package faults_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// Full: 20 times. Clients follow a name, which moves some time after the master has.
func TestReplication_FailoverByHandRepeatsNothing(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--appendonly", "no", "--repl-diskless-sync-delay", "0")
	host, port, _ := strings.Cut(master.Addr, ":")
	other := redistest.Start(t, "--appendonly", "no", "--repl-diskless-sync-delay", "0", "--replicaof", host+" "+port)
	var name atomic.Pointer[string]
	name.Store(&master.Addr)
	rdb := redis.NewClient(&redis.Options{
		Addr: "name:6379", ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *name.Load())
		},
	})
	t.Cleanup(func() { rdb.Close() })
	r := newRig(t, rdb, setup{rate: 300})
	for range full(20, 2) {
		master.AwaitReplicas(1)
		r.progress(100)
		admin := master.Client()
		if err := admin.Do(t.Context(), "FAILOVER").Err(); err != nil {
			t.Fatal(err)
		}
		until(t, "the master to be a replica", func() bool {
			return strings.Contains(admin.Info(t.Context(), "replication").Val(), "role:slave")
		})
		lasts(300 * time.Millisecond)
		master, other = other, master
		name.Store(&master.Addr)
		r.progress(100)
	}
	r.finish().MustExplain(t)
}
