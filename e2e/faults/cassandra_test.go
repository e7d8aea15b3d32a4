package faults_test

import (
	"context"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/cassandrastore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// newCassandra starts a node that confirms what is on disk, and makes a keyspace and its table.
func newCassandra(t *testing.T) (server *cassandratest.Server, at string, store *cassandrastore.Store) {
	t.Helper()
	if !proof {
		t.Skip("only with ONCEMILL_PROOF=1: a node takes half a minute to start")
	}
	server = cassandratest.Start(t, "commitlog_sync: batch", "commitlog_sync_period: ")
	at = server.Addr + "/" + server.Keyspace(t)
	opened, shut, err := openCassandra(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shut)
	store = opened.(*cassandrastore.Store)
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return server, at, store
}

func openCassandra(at string) (store dedupstore.Store, shut func(), err error) {
	addr, keyspace, _ := strings.Cut(at, "/")
	c := gocql.NewCluster(addr)
	c.Authenticator = gocql.PasswordAuthenticator{Username: cassandratest.User, Password: cassandratest.User}
	c.Timeout, c.ConnectTimeout, c.ReconnectInterval = 10*time.Second, 20*time.Second, 100*time.Millisecond
	session, err := c.CreateSession()
	if err != nil {
		return nil, nil, err
	}
	store, err = cassandrastore.New(session, cassandrastore.Config{Keyspace: keyspace})
	return store, session.Close, err
}

// 5 kills of the node, by SIGKILL. The leases are longer than it is away, half a minute: every outcome can be recorded,
// and nothing runs twice. Claims whose answer got lost end with their leases, before waitLimit.
func TestCassandra_NodeKilledRepeatsNothing(t *testing.T) {
	t.Parallel()
	server, _, store := newCassandra(t)
	r := newRigOn(t, store, setup{
		rate: 20, lease: 90 * time.Second, keep: 5 * time.Second,
		work: func(context.Context, oncemill.Run) { lasts(2 * time.Millisecond) }, // so that some are under way
	})
	for range 5 {
		r.progress(100)
		server.Kill()
		server.Restart()
	}
	r.progress(100)
	r.finish().MustExplain(t)
}

// 5,000 messages; 50 SIGKILLs of consumers.
func TestCassandra_ConsumersKilled(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	_, at, _ := newCassandra(t)
	nats := natstest.Start(t)
	s := newShop(t, []string{nats.URL()}, nats.JetStream(), jetstream.StreamConfig{Replicas: 1}, lease, task{
		Node: at, Handler: "unsteady", Work: 10 * time.Millisecond, Lease: lease, MaxWait: lease / 2,
		Grace: 5 * time.Second, Window: 24,
	})
	m := &massacre{shop: s, killed: map[int]time.Time{}}
	b := m.survives(5000, 100, 50, 0)
	b.MustExplain(t, ledger.HandlerFailed, ledger.HolderKilled, ledger.LostLease)
	s.mustHaveGivenUpNothing()
}
