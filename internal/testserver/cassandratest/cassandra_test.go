package cassandratest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/internal/testserver"
)

// This is also how the scripts fetch the jars before tests with a time limit need them.
func TestCassandra_JarsAreFetchedOnce(t *testing.T) {
	n := newNode(t, t.TempDir(), nil)
	found, err := filepath.Glob(filepath.Join(n.jars, "cassandra-all-"+version+".jar"))
	if len(found) != 1 || err != nil {
		t.Errorf("the node's jar: %q, %v", found, err)
	}
}

func TestNode_LinesOfTheTestWin(t *testing.T) {
	n := node{dir: "here", config: []string{"commitlog_sync: batch", "commitlog_sync_period: "}}
	yaml := n.yaml()
	if strings.Count(yaml, "commitlog_sync") != 1 || !strings.Contains(yaml, "commitlog_sync: batch\n") {
		t.Errorf("the configuration is\n%s", yaml)
	}
}

func TestStart_SkipsWhereNoServerIsWanted(t *testing.T) {
	t.Setenv("ONCEMILL_TEST_SERVERS", "none")
	for i, ask := range []func(testing.TB){
		func(t testing.TB) { Start(t) },
		func(t testing.TB) { Shared(t) },
	} {
		if did := testserver.EndOf(t, ask); did != "skip" {
			t.Errorf("%d: %q, want a skip", i, did)
		}
	}
}

// It takes a minute. The proofs kill nodes, and look at what they keep.
func TestCassandra_KeepsItsDataOverKillAndRestart(t *testing.T) {
	if os.Getenv("ONCEMILL_PROOF") != "1" {
		t.Skip("only with ONCEMILL_PROOF=1")
	}
	s := Start(t, "commitlog_sync: batch", "commitlog_sync_period: ")
	keyspace := s.Keyspace(t)
	session := s.Session(t)
	for _, cql := range []string{
		"CREATE TABLE " + keyspace + ".t (id int PRIMARY KEY, v int)",
		"UPDATE " + keyspace + ".t SET v = 2 WHERE id = 1 IF v = null",
	} {
		if err := session.Query(cql).ExecContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill()
	s.Restart()
	v := 0
	q := s.Session(t).Query("SELECT v FROM " + keyspace + ".t WHERE id = 1").Consistency(gocql.Serial)
	if err := q.ScanContext(t.Context(), &v); err != nil || v != 2 {
		t.Errorf("after the restart: %d, %v", v, err)
	}
}
