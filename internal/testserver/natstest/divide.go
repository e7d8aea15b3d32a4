package natstest

import (
	"net"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// StartDivisibleCluster is [StartClusterOfProcesses] whose servers talk to each other over links that Isolate cuts. It
// also lets servers stand still.
func StartDivisibleCluster(t testing.TB, n int, program string) *Cluster {
	t.Helper()
	links := map[[2]int]*link{}
	c := startNATSCluster(t, n, func(i int, ports []natsPorts) natsNode {
		node := &processNode{program: program, dir: t.TempDir(), i: i, ports: ports}
		for j, p := range ports {
			if j != i {
				l := startLink(t, testserver.Loopback(p.route))
				links[[2]int{i, j}] = l
				node.peers = append(node.peers, "nats-route://"+l.Addr)
			}
		}
		return node
	})
	c.links = links
	return c
}

// A link is a way from one server to another, on which nothing arrives while it is cut.
type link struct {
	testserver.Bridge
	mu    sync.Mutex
	whole chan struct{} // closed while it is not cut
}

func startLink(t testing.TB, target string) *link {
	l := &link{whole: make(chan struct{})}
	close(l.whole)
	l.Start(t, target, func(client, server net.Conn) {
		l.Go(func() {
			l.pass(client, server)
			server.Close()
		})
		l.pass(server, client)
	})
	return l
}

func (l *link) pass(from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		whole := l.whole
		l.mu.Unlock()
		l.Wait(whole)
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = make(chan struct{})
}

func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.whole)
}

// Isolate lets a node and the others hear nothing of each other, until the function it returns is called. What they
// send meanwhile arrives then.
func (c *Cluster) Isolate(node int) (mend func()) {
	var cut []*link
	for ends, l := range c.links {
		if ends[0] == node || ends[1] == node {
			l.cut()
			cut = append(cut, l)
		}
	}
	return func() {
		for _, l := range cut {
			l.mend()
		}
	}
}

// Pause stops a node that is a process, and the function it returns lets it go on.
func (c *Cluster) Pause(node int) (resume func()) {
	c.t.Helper()
	p := c.nodes[node].(*processNode).process
	if err := p.Pause(); err != nil {
		c.t.Fatalf("testserver: pause NATS node %d: %v", node, err)
	}
	return func() {
		if err := p.Resume(); err != nil {
			c.t.Errorf("testserver: resume NATS node %d: %v", node, err)
		}
	}
}
