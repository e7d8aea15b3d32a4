package natstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Cluster are a cluster of NATS servers with JetStream for one test. Nodes are numbered from 0.
type Cluster struct {
	t     testing.TB
	nodes []natsNode
	ports []natsPorts
	js    jetstream.JetStream // to ask about the cluster
	links map[[2]int]*link    // between nodes, of a divisible one
}

// A natsNode is one server of a cluster.
type natsNode interface {
	start() error // until it takes connections
	kill() error
	runs() bool
}

// StartCluster starts a cluster of n embedded servers, and returns when one of them leads it and a stream with n
// replicas can be made. Killing a server that is embedded is Shutdown: it says good-bye and hands its leaderships over.
// If you can't have that, use [NATSClusterOfProcesses].
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	c := startNATSCluster(t, n, func(i int, ports []natsPorts) natsNode {
		return newEmbeddedNode(t.TempDir(), i, ports)
	})
	testserver.Record(t, fmt.Sprintf("nats-server %s (embedded, cluster of %d)", server.VERSION, n))
	return c
}

// StartClusterOfProcesses is NATSCluster with a process for each server, made of a program that [BuildProgram] has built
// of github.com/nats-io/nats-server/v2: killing one is SIGKILL. It has the same version as an embedded one.
func StartClusterOfProcesses(t testing.TB, n int, program string) *Cluster {
	t.Helper()
	c := startNATSCluster(t, n, func(i int, ports []natsPorts) natsNode {
		return &processNode{program: program, dir: t.TempDir(), i: i, ports: ports}
	})
	testserver.Record(t, fmt.Sprintf("nats-server %s (started, cluster of %d)", server.VERSION, n))
	return c
}

// startNATSCluster starts nodes, on other ports if somebody took one of the first.
func startNATSCluster(t testing.TB, n int, node func(i int, ports []natsPorts) natsNode) *Cluster {
	t.Helper()
	testserver.Wanted(t)
	var err error
	for range 5 {
		c := &Cluster{t: t}
		if c.ports, err = freeNATSPorts(n); err != nil {
			continue
		}
		for i := range n {
			c.nodes = append(c.nodes, node(i, c.ports))
		}
		if err = c.startAll(); err != nil {
			c.stop()
			continue
		}
		t.Cleanup(c.stop)
		c.js = c.JetStream()
		c.await("a stream with a replica on each node", func(ctx context.Context) error { return c.probe(ctx) })
		return c
	}
	t.Fatalf("testserver: start a NATS cluster: %v", err)
	return nil
}

// startAll starts the nodes side by side.
func (c *Cluster) startAll() error {
	failed := make(chan error)
	for i, node := range c.nodes {
		go func() {
			err := node.start()
			if err != nil {
				err = fmt.Errorf("node %d: %w", i, err)
			}
			failed <- err
		}()
	}
	var all []error
	for range c.nodes {
		all = append(all, <-failed)
	}
	return errors.Join(all...)
}

// stop ends what still runs.
func (c *Cluster) stop() {
	for i, node := range c.nodes {
		if !node.runs() {
			continue
		}
		if err := node.kill(); err != nil {
			c.t.Errorf("testserver: stop NATS node %d: %v", i, err)
		}
	}
}

// probe makes a stream that needs all nodes, and removes it.
func (c *Cluster) probe(ctx context.Context) error {
	const name = "testserver-probe"
	_, err := c.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name}, Replicas: len(c.nodes), Storage: jetstream.MemoryStorage,
	})
	if err != nil {
		return err
	}
	if err := c.current(ctx, name); err != nil {
		return err
	}
	return c.js.DeleteStream(ctx, name)
}

// await repeats a step, for as long as a cluster may take to elect somebody.
func (c *Cluster) await(what string, step func(context.Context) error) {
	c.t.Helper()
	Ask(c.t, what, func(ctx context.Context) (struct{}, error) { return struct{}{}, step(ctx) })
}

// Ask repeats a request to NATS servers until it succeeds, and fails the test if it never does. A cluster may change its
// leaders at any moment, also when nobody has harmed it, and what is asked just then is refused or not answered. A
// request must do no harm when it is made again.
func Ask[T any](t testing.TB, what string, request func(context.Context) (T, error)) (answer T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*testserver.WaitLimit)
	defer cancel()
	err := testserver.Until(ctx, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second) // a request to a node that dies is not answered
		defer cancel()
		answer, err = request(ctx)
		return err
	})
	if err != nil {
		t.Fatalf("testserver: NATS: await %s: %v", what, err)
	}
	return answer
}

// URLs are where clients connect to, by node. They stay through restarts.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, p := range c.ports {
		urls = append(urls, p.url())
	}
	return urls
}

// Connect returns a new connection to any of the nodes, which is closed when the test ends. Without other options it
// reconnects for ever, without pauses that a test would notice.
func (c *Cluster) Connect(options ...nats.Option) *nats.Conn {
	c.t.Helper()
	return connectNATS(c.t, c.URLs(), options...)
}

// JetStream returns JetStream on a new connection.
func (c *Cluster) JetStream(options ...nats.Option) jetstream.JetStream {
	c.t.Helper()
	js, err := jetstream.New(c.Connect(options...))
	if err != nil {
		c.t.Fatalf("testserver: JetStream: %v", err)
	}
	return js
}
