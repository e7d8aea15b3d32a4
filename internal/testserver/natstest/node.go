package natstest

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const natsClusterName = "testserver"

// natsName is the server name of a node.
func natsName(node int) string { return fmt.Sprintf("node-%d", node) }

// natsPorts are the ports of one node.
type natsPorts struct{ client, route int }

func (p natsPorts) url() string  { return "nats://" + testserver.Loopback(p.client) }
func (p natsPorts) peer() string { return "nats-route://" + testserver.Loopback(p.route) }

// taken is an error if another process has one of the ports.
func (p natsPorts) taken() error { return errors.Join(portTaken(p.client), portTaken(p.route)) }

func portTaken(port int) error {
	l, err := net.Listen("tcp", testserver.Loopback(port))
	if err != nil {
		return err
	}
	return l.Close()
}

func freeNATSPorts(n int) ([]natsPorts, error) {
	ports := make([]natsPorts, n)
	var err1, err2 error
	for i := range ports {
		ports[i].client, err1 = testserver.FreePort()
		ports[i].route, err2 = testserver.FreePort()
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
	}
	return ports, nil
}

// connectNATS is Connect of one server and of a cluster.
func connectNATS(t testing.TB, urls []string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(strings.Join(urls, ","), append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(testserver.WaitLimit),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default writes to stderr
	}, options...)...)
	if err != nil {
		t.Fatalf("testserver: connect to nats-server: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// An embeddedNode is a server in this process.
type embeddedNode struct {
	options server.Options
	ports   natsPorts
	server  *server.Server
}

func newEmbeddedNode(dir string, i int, ports []natsPorts) *embeddedNode {
	n := &embeddedNode{ports: ports[i], options: server.Options{
		ServerName: natsName(i), Host: "127.0.0.1", Port: ports[i].client, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: dir, JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 1 << 30,
		Cluster: server.ClusterOpts{Name: natsClusterName, Host: "127.0.0.1", Port: ports[i].route},
	}}
	for _, p := range ports {
		n.options.Routes = append(n.options.Routes, &url.URL{Scheme: "nats-route", Host: testserver.Loopback(p.route)})
	}
	return n
}

func (n *embeddedNode) start() error {
	if err := n.ports.taken(); err != nil { // without a log the server does not tell, it is never ready
		return err
	}
	options := n.options // the server writes to its options
	started, err := server.NewServer(&options)
	if err != nil {
		return err
	}
	started.Start()
	if !started.ReadyForConnections(testserver.WaitLimit) {
		started.Shutdown()
		started.WaitForShutdown()
		return fmt.Errorf("not ready after %v", testserver.WaitLimit)
	}
	n.server = started
	return nil
}

func (n *embeddedNode) kill() error {
	n.server.Shutdown()
	n.server.WaitForShutdown()
	return nil
}

func (n *embeddedNode) runs() bool { return n.server != nil && n.server.Running() }

// last is the number of the last message that the node's replica of a stream answers with; 0: it has none.
func (n *embeddedNode) last(stream string) uint64 {
	account, err := n.server.JszAccount(&server.JSzOptions{Account: server.DEFAULT_GLOBAL_ACCOUNT, Streams: true})
	if err != nil {
		return 0
	}
	for _, s := range account.Streams {
		if s.Name == stream {
			return s.State.LastSeq
		}
	}
	return 0
}

// A processNode is a server with a process of its own.
type processNode struct {
	program, dir string
	i            int
	ports        []natsPorts
	peers        []string // where the others are; nil: where they listen
	process      *testserver.Process
}

func (n *processNode) start() error {
	peers, advertised := n.peers, ""
	if peers != nil {
		advertised = testserver.Loopback(1) // where nobody listens: no server finds a way around a link
	}
	for _, p := range n.ports {
		if n.peers == nil {
			peers = append(peers, p.peer())
		}
	}
	own := n.ports[n.i]
	command := []string{
		n.program, "-a", "127.0.0.1", "-p", strconv.Itoa(own.client), "-js", "-sd", n.dir, "--name", natsName(n.i),
	}
	if len(n.ports) > 1 {
		command = append(command, "--cluster_name", natsClusterName, "--cluster", "nats://"+testserver.Loopback(own.route),
			"--routes", strings.Join(peers, ","), "--cluster_advertise", advertised)
	}
	p, err := testserver.StartServer(n.dir, command, testserver.WaitLimit, func() error {
		conn, err := net.DialTimeout("tcp", testserver.Loopback(own.client), time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	n.process = p
	return err
}

func (n *processNode) kill() error { return n.process.Kill() }

func (n *processNode) runs() bool {
	if n.process == nil {
		return false
	}
	select {
	case <-n.process.Ended():
		return false
	default:
		return true
	}
}
