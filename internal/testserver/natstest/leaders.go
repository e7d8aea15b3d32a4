package natstest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamLeader is the node that leads a stream. It waits until one that runs does.
func (c *Cluster) StreamLeader(stream string) (leader int) {
	c.t.Helper()
	c.await("a leader of stream "+stream, func(ctx context.Context) (err error) {
		leader, err = c.leader(ctx, stream)
		return err
	})
	return leader
}

func (c *Cluster) leader(ctx context.Context, stream string) (int, error) {
	cluster, _, err := c.ask(ctx, stream)
	if err != nil {
		return 0, err
	}
	return c.leads(cluster)
}

// leads is the node that leads, if it runs.
func (c *Cluster) leads(cluster *jetstream.ClusterInfo) (int, error) {
	for i, node := range c.nodes {
		if cluster.Leader == natsName(i) && node.runs() {
			return i, nil
		}
	}
	return 0, fmt.Errorf("its leader is %q", cluster.Leader)
}

// ConsumerLeader is the node that leads a consumer. It waits until one that runs does.
func (c *Cluster) ConsumerLeader(stream, consumer string) (leader int) {
	c.t.Helper()
	c.await("a leader of consumer "+consumer, func(ctx context.Context) error {
		cons, err := c.js.Consumer(ctx, stream, consumer)
		if err != nil {
			return err
		}
		if cons.CachedInfo().Cluster == nil {
			return errNoCluster
		}
		leader, err = c.leads(cons.CachedInfo().Cluster)
		return err
	})
	return leader
}

var errNoCluster = errors.New("the server says nothing about a cluster")

// ask is what the cluster says about a stream's replicas, and the last message of their leader.
func (c *Cluster) ask(ctx context.Context, stream string) (*jetstream.ClusterInfo, uint64, error) {
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		return nil, 0, err
	}
	cluster := s.CachedInfo().Cluster
	if len(c.nodes) == 1 { // which is no cluster
		cluster = &jetstream.ClusterInfo{Leader: natsName(0)}
	}
	if cluster == nil {
		return nil, 0, errNoCluster
	}
	return cluster, s.CachedInfo().State.LastSeq, nil
}

// current succeeds when a stream has a leader, and each other replica what it has.
func (c *Cluster) current(ctx context.Context, stream string) error {
	if _, err := c.leader(ctx, stream); err != nil {
		return err
	}
	cluster, last, err := c.ask(ctx, stream)
	if err != nil {
		return err
	}
	var behind []string
	for _, r := range cluster.Replicas {
		if !r.Current || r.Offline || !c.applied(r.Name, stream, last) {
			behind = append(behind, r.Name)
		}
	}
	if len(behind) > 0 {
		return fmt.Errorf("replicas on %s are behind", strings.Join(behind, ", "))
	}
	return nil
}

// applied tells whether a replica answers with a message. One that is current has it in its log, and may have yet to
// apply that. Of a process nobody knows.
func (c *Cluster) applied(name, stream string, number uint64) bool {
	for i, node := range c.nodes {
		if e, embedded := node.(*embeddedNode); embedded && natsName(i) == name {
			return e.last(stream) >= number
		}
	}
	return true
}

// AwaitCurrent waits until all replicas of a stream run and have what their leader has, so that any of them may be
// killed, and, if they are embedded, answers with all of it.
func (c *Cluster) AwaitCurrent(stream string) {
	c.t.Helper()
	c.await("all replicas of stream "+stream, func(ctx context.Context) error { return c.current(ctx, stream) })
}

// KillLeader kills the node that leads a stream, and returns it.
func (c *Cluster) KillLeader(stream string) int {
	c.t.Helper()
	leader := c.StreamLeader(stream)
	c.Kill(leader)
	return leader
}

// Kill ends a node without letting clients finish, and waits for its end.
func (c *Cluster) Kill(node int) {
	c.t.Helper()
	if err := c.nodes[node].kill(); err != nil {
		c.t.Fatalf("testserver: kill NATS node %d: %v", node, err)
	}
}

// Restart starts a node again after Kill, on the same ports and files, and waits until it takes connections.
func (c *Cluster) Restart(node int) {
	c.t.Helper()
	var err error
	for range 5 { // somebody may use a port for a moment
		if err = c.nodes[node].start(); err == nil {
			return
		}
		testserver.Pause()
	}
	c.t.Fatalf("testserver: restart NATS node %d: %v", node, err)
}
