package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/redis/go-redis/v9"
)

// MasterOf is the node that serves a key, as the nodes that run see it at this moment.
func (c *Cluster) MasterOf(key string) *Server {
	c.t.Helper()
	return c.mustServe(Slot(key))[0]
}

// ReplicaOf is the replica of the node that serves a key.
func (c *Cluster) ReplicaOf(key string) *Server {
	c.t.Helper()
	nodes := c.mustServe(Slot(key))
	if len(nodes) < 2 {
		c.t.Fatalf("testserver: the master of %q has no replica", key)
	}
	return nodes[1]
}

// KillMasterOf ends the node that serves a key with SIGKILL, and returns it. Its replica takes over soon.
func (c *Cluster) KillMasterOf(key string) *Server {
	c.t.Helper()
	node := c.MasterOf(key)
	c.FailOverSoon()
	node.Kill()
	return node
}

// AwaitMasterOf waits until another node than the given one serves a key and says that the cluster is complete, and
// returns it.
func (c *Cluster) AwaitMasterOf(key string, not *Server) *Server {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), testserver.WaitLimit)
	defer cancel()
	var node *Server
	err := testserver.Until(ctx, func() error {
		nodes, err := c.serving(ctx, Slot(key))
		switch {
		case err != nil:
			return err
		case nodes[0] == not:
			return errors.New("no other node serves the key")
		}
		node = nodes[0]
		rdb := redis.NewClient(node.Options())
		defer rdb.Close()
		if err := takesWrites(ctx, rdb); err != nil {
			return err
		}
		return clusterOK(ctx, rdb)
	})
	if err != nil {
		c.t.Fatalf("testserver: await a new master of %q: %v", key, err)
	}
	return node
}

func (c *Cluster) mustServe(slot int) []*Server {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), testserver.WaitLimit)
	defer cancel()
	nodes, err := c.serving(ctx, slot)
	if err != nil {
		c.t.Fatalf("testserver: %v", err)
	}
	return nodes
}

// serving asks the nodes that run who serves a slot: the master, then its replicas.
func (c *Cluster) serving(ctx context.Context, slot int) ([]*Server, error) {
	failed := errors.New("no node runs")
	for _, node := range c.Nodes {
		if node.ended() {
			continue
		}
		nodes, err := c.asked(ctx, node, slot)
		if err == nil {
			return nodes, nil
		}
		failed = err
	}
	return nil, failed
}

// asked is what one node says. CLUSTER SLOTS would leave out replicas to which nothing was written yet.
func (c *Cluster) asked(ctx context.Context, node *Server, slot int) ([]*Server, error) {
	rdb := redis.NewClient(node.Options())
	defer rdb.Close()
	text, err := rdb.ClusterNodes(ctx).Result()
	if err != nil {
		return nil, err
	}
	var serving []*Server
	masterID := ""
	for line := range strings.Lines(text) { // id, address, flags, master, ping, pong, epoch, link, slots...
		if f := strings.Fields(line); len(f) > 8 && serves(f[8:], slot) {
			masterID, serving = f[0], append(serving, c.node(f[1]))
		}
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 8 && f[3] == masterID {
			serving = append(serving, c.node(f[1]))
		}
	}
	if masterID == "" || slices.Contains(serving, nil) {
		return nil, fmt.Errorf("%s does not know who serves slot %d", node.Addr, slot)
	}
	return serving, nil
}

// serves says whether a slot is one of those that a node lists, such as "0-5460".
func serves(ranges []string, slot int) bool {
	return slices.ContainsFunc(ranges, func(r string) bool {
		first, last, found := strings.Cut(r, "-")
		if !found {
			last = first
		}
		from, err1 := strconv.Atoi(first) // fails for a slot on its way, "[93-<-id]"
		to, err2 := strconv.Atoi(last)
		return err1 == nil && err2 == nil && from <= slot && slot <= to
	})
}

// node is the node at an address such as "127.0.0.1:6379@16379", or nil.
func (c *Cluster) node(addr string) *Server {
	for _, n := range c.Nodes {
		if strings.HasPrefix(addr, n.Addr+"@") {
			return n
		}
	}
	return nil
}

// ended says whether the server's process has ended.
func (s *Server) ended() bool {
	select {
	case <-s.Process().Ended():
		return true
	default:
		return false
	}
}
