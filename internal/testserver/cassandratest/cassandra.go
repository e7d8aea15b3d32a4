package cassandratest

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/internal/testserver"
)

// given names the environment variable with the host and port of a node to use instead of starting one. It has to have
// the user that a new node has.
const given = "ONCEMILL_TEST_CASSANDRA"

// User is the name and the password of the user, who may do everything.
const User = "cassandra"

// record is the line that tells which node was used.
const record = "cassandra " + version + " (started)"

// A Server is one Cassandra node for one test or for several.
type Server struct {
	Addr string // host:port; it stays through restarts

	*testserver.Owned
	t    testing.TB
	node node
}

// Start starts a new, empty node for the test. The config adds lines of cassandra.yaml, "name: value", which win over
// those of the test server. It takes half a minute or more: a test that does not kill its node uses [Shared].
//
// The jars are fetched through Maven into the user's cache folder, once. If Java is missing, or the jars cannot be had,
// the test is skipped, and fails with CI=true.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	s := &Server{t: t, node: newNode(t, t.TempDir(), config)}
	s.Owned = testserver.Own(t, "Cassandra", given, s.node.start)
	s.Owned.Start(s.node.takePorts)
	s.Addr = s.node.addr()
	testserver.Record(t, record)
	return s
}

// URL is where a keyspace is, as the program oncemill reads it.
func (s *Server) URL(keyspace string) string {
	return "cassandra://" + User + ":" + User + "@" + s.Addr + "/" + keyspace
}

// Session returns a new session, which is closed when the test ends. The functions may change its config.
func (s *Server) Session(t testing.TB, configure ...func(*gocql.ClusterConfig)) *gocql.Session {
	t.Helper()
	c := cluster(s.Addr)
	for _, f := range configure {
		f(c)
	}
	session, err := c.CreateSession()
	if err != nil {
		t.Fatalf("testserver: session of Cassandra: %v", err)
	}
	t.Cleanup(session.Close)
	return session
}

// keyspaces counts the keyspaces of this process.
var keyspaces atomic.Int64

// Keyspace makes a keyspace of one replica for a test. It stays as long as the node.
func (s *Server) Keyspace(t testing.TB) (name string) {
	t.Helper()
	name = fmt.Sprintf("test_%d_%d", os.Getpid(), keyspaces.Add(1))
	cql := "CREATE KEYSPACE " + name + " WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
	if err := s.Session(t).Query(cql).ExecContext(t.Context()); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return name
}

// shared is the node of this process.
var shared struct {
	testserver.Shared
	node node
}

// Shared returns the node that the tests of this process share, and starts it for the first of them; or the one that
// ONCEMILL_TEST_CASSANDRA names. Each test makes a keyspace or a table of its own. Nobody stops or configures it; it
// ends with the process, however that ends.
func Shared(t testing.TB) *Server {
	t.Helper()
	testserver.Wanted(t)
	if addr := os.Getenv(given); addr != "" {
		testserver.Record(t, "cassandra (given by "+given+")")
		return &Server{Owned: testserver.Own(t, "Cassandra", given, nil), t: t, Addr: addr}
	}
	shared.Start(t, func() (alive *os.File, err error) {
		shared.node = newNode(t, "", nil)
		err = testserver.OnFreePort(func(port int) (err error) {
			alive, err = shared.node.share(port)
			return err
		})
		return alive, err
	})
	testserver.Record(t, record)
	return &Server{
		Owned: testserver.Own(t, "Cassandra", given, nil), t: t, Addr: shared.node.addr(), node: shared.node,
	}
}

// share starts the node in a new folder. It ends with this process.
func (n *node) share(port int) (alive *os.File, err error) {
	if n.dir, err = os.MkdirTemp("", "oncemill-cassandra-"); err != nil {
		return nil, err
	}
	if err := n.takePorts(port); err != nil {
		return nil, err
	}
	if err := n.prepare(); err != nil {
		return nil, err
	}
	return testserver.StartWatched(n.dir, n.command(), startLimit, n.look)
}
