package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/redis/go-redis/v9"
)

const (
	clusterMasters = 3
	clusterNodes   = 2 * clusterMasters
	clusterSlots   = 16384
	busOffset      = 10000 // the port of the cluster bus is the port plus this
)

// A Cluster is a Redis Cluster for one test: three masters with a replica each.
type Cluster struct {
	Nodes []*Server // masters first; the replica of master i is node i+3

	t testing.TB
}

// StartCluster starts a cluster of three masters and three replicas from the redis-server in PATH. It returns when all
// of them call it complete and the replicas hold what their masters do. The arguments are for its servers. Until
// FailOverSoon, nodes that do not answer for less than 15 s are waited for: a busy machine is to replace nobody.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	needRedis(t)
	c := &Cluster{t: t}
	for range clusterNodes {
		node := &Server{t: t, dir: t.TempDir(), args: append([]string{
			"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "15000",
			"--appendonly", "yes", "--appendfsync", "always",
		}, args...)}
		node.startOnFreePort(freeClusterPort)
		c.Nodes = append(c.Nodes, node)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*testserver.WaitLimit)
	defer cancel()
	if err := c.form(ctx); err != nil {
		t.Fatalf("testserver: form a Redis Cluster: %v", err)
	}
	testserver.Record(t, fmt.Sprintf("redis-server %s (started, cluster of %d+%d)", redisVersion(t), clusterMasters, clusterMasters))
	return c
}

// FailOverSoon has replicas replace a node that does not answer for half a second. A test calls it as it kills one.
func (c *Cluster) FailOverSoon() {
	c.t.Helper()
	for _, node := range c.Nodes {
		if err := node.Client().ConfigSet(c.t.Context(), "cluster-node-timeout", "500").Err(); err != nil {
			c.t.Fatalf("testserver: %s: %v", node.Addr, err)
		}
	}
}

// freeClusterPort returns a free port whose bus port is free as well.
func freeClusterPort() (int, error) {
	for range 100 {
		port, err := testserver.FreePort()
		if err != nil {
			return 0, err
		}
		if port+busOffset > 65535 {
			continue
		}
		if l, err := net.Listen("tcp", testserver.Loopback(port+busOffset)); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free pair of ports")
}

// form makes one cluster of the nodes.
func (c *Cluster) form(ctx context.Context) error {
	clients := make([]*redis.Client, len(c.Nodes))
	for i, n := range c.Nodes {
		clients[i] = n.Client()
	}
	for i, rdb := range clients {
		if err := rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		if i < clusterMasters {
			from, to := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1
			if err := rdb.ClusterAddSlotsRange(ctx, from, to).Err(); err != nil {
				return err
			}
		}
		if i > 0 {
			if err := rdb.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(c.Nodes[0].port)).Err(); err != nil {
				return err
			}
		}
	}
	for i := clusterMasters; i < clusterNodes; i++ {
		master, err := clients[i-clusterMasters].Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			return err
		}
		// The replica does not know its master until gossip has told it.
		err = testserver.Until(ctx, func() error { return clients[i].ClusterReplicate(ctx, master).Err() })
		if err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	for i, rdb := range clients {
		if err := testserver.Until(ctx, func() error { return nodeReady(ctx, rdb, i >= clusterMasters) }); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	return nil
}

func nodeReady(ctx context.Context, rdb *redis.Client, replica bool) error {
	if err := clusterOK(ctx, rdb); err != nil {
		return err
	}
	nodes, err := rdb.ClusterNodes(ctx).Result()
	if err != nil {
		return err
	}
	if n := strings.Count(nodes, "slave "); n != clusterMasters { // gossip tells who is one
		return fmt.Errorf("CLUSTER NODES has %d replicas, want %d", n, clusterMasters)
	}
	if replica {
		return replicating(ctx, rdb)
	}
	return nil
}

// clusterOK succeeds when a node knows all others and says that every slot is served.
func clusterOK(ctx context.Context, rdb *redis.Client) error {
	info, err := rdb.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", clusterNodes)} {
		if !strings.Contains(info, want) {
			return fmt.Errorf("CLUSTER INFO has no %s", want)
		}
	}
	return nil
}

// Options returns new options for a client of the cluster. Everything else is go-redis's default.
func (c *Cluster) Options() *redis.ClusterOptions {
	o := &redis.ClusterOptions{ContextTimeoutEnabled: true, DialerRetries: 1}
	for _, n := range c.Nodes {
		o.Addrs = append(o.Addrs, n.Addr)
	}
	return o
}

// Client returns a new client of the cluster, which is closed when the test ends. It looks for changes of the cluster
// twice a second.
func (c *Cluster) Client() *redis.ClusterClient {
	o := c.Options()
	o.ClusterStateReloadInterval = 500 * time.Millisecond
	rdb := redis.NewClusterClient(o)
	c.t.Cleanup(func() { rdb.Close() })
	return rdb
}
