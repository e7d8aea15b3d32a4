package cassandrastore

import (
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "8") // unless -parallel says otherwise: tests wait for the server, and for leases
	leaktest.Main(m)
}

// proof says whether time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") != ""

func tableName() string { return "t" + strings.ReplaceAll(ids.New(), "-", "") }

// storeOf returns a store whose leases live hardly longer than they should, as the cases of the suite want it.
func storeOf(t testing.TB, session *gocql.Session, c Config) *Store {
	t.Helper()
	s, err := New(session, c)
	if err != nil {
		t.Fatal(err)
	}
	s.slack = 20 * time.Millisecond
	return s
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

func key(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id}
}

func request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key: key(id), Owner: ids.Token(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3,
	}
}

func claim(t testing.TB, s dedupstore.Store, r dedupstore.Request, want dedupstore.Status) dedupstore.Answer {
	t.Helper()
	a, err := dedupstore.ClaimOne(t.Context(), s, r)
	if err != nil || a.Status != want {
		t.Fatalf("claim was answered %s %+v, %v; want %s", a.Status, a, err, want)
	}
	return a
}

func settle(t testing.TB, s dedupstore.Store, c dedupstore.Claim, settlement dedupstore.Settlement) {
	t.Helper()
	if err := dedupstore.SettleOne(t.Context(), s, c, settlement); err != nil {
		t.Fatalf("settle with %T: %v", settlement, err)
	}
}

func succeeded(result string) dedupstore.Finish {
	return dedupstore.Finish{
		Retention: time.Hour, Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(result)},
	}
}

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

// compared lets a store believe that it has just compared its clock.
func compared(s *Store) { s.clock.last.Store(&offset{came: time.Now()}) }
