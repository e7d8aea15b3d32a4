package cassandrastore

import (
	"flag"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "8") // unless -parallel says otherwise: tests wait for the server, and for leases
	leaktest.Main(m)
}

func tableName() string { return "t" + strings.ReplaceAll(ids.New(), "-", "") }

// storeOf returns a store whose leases live hardly longer than they should, as the cases of the suite want it.
func storeOf(t testing.TB, session *gocql.Session, c Config) *Store {
	t.Helper()
	s, err := New(session, c)
	if err != nil {
		t.Fatal(err)
	}
	s.slack, s.within = 20*time.Millisecond, 2*time.Minute
	s.clock.lasts = time.Hour // the node's clock is this host's
	return s
}

// clocked returns another store of the same table, whose clock stands still until it is moved.
func clocked(t testing.TB, of *Store) (*Store, *claimtest.Clock) {
	t.Helper()
	s, clock := storeOf(t, of.session, of.cfg), claimtest.NewClock()
	s.wall = clock.Now
	return s, clock
}

// newStore returns a store with a table of its own.
func newStore(t testing.TB) *Store {
	t.Helper()
	return migrated(t, cassandratest.Shared(t).Session(t))
}

func migrated(t testing.TB, session *gocql.Session) *Store {
	t.Helper()
	s := storeOf(t, session, Config{Keyspace: keyspace(t), Table: tableName()})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// throughProxy returns a store behind a proxy.
func throughProxy(t testing.TB) (*Store, *cassandratest.Proxy) {
	t.Helper()
	proxy := cassandratest.StartProxy(t, cassandratest.Shared(t))
	s := migrated(t, proxy.Session())
	// What is prepared and compared does not count later.
	settle(t, s, claim(t, s, request("0"), dedupstore.AcquiredRun).Claim, succeeded(""))
	if _, err := s.Look(t.Context(), []dedupstore.Key{key("0")}); err != nil {
		t.Fatal(err)
	}
	return s, proxy
}

var (
	key       = claimtest.Key
	request   = claimtest.Request
	claim     = claimtest.Claim
	settle    = claimtest.Settle
	succeeded = claimtest.Succeeded
)

// made is the keyspace of all tests: Cassandra takes long to make one.
var made struct {
	sync.Mutex
	name string
}

func keyspace(t testing.TB) string {
	t.Helper()
	made.Lock()
	defer made.Unlock()
	if made.name == "" {
		made.name = cassandratest.Shared(t).Keyspace(t)
	}
	return made.name
}
