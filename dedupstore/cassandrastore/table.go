package cassandrastore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
)

// version is that of the table, which its comment has behind mark.
const (
	version = 1
	mark    = "oncemill dedup "
)

// columns are the columns of the table, as system_schema tells them.
var columns = map[string]string{"id": "partition_key text", "rev": "regular bigint", "rec": "regular blob"}

// SQL returns the statement by which Migrate makes the table, in CQL, for your own migration tool.
//
// Rows that are dead stay for gc_grace_seconds. A day is longer than the three hours for which nodes keep what another
// one has missed. Levels keep a row, which is written at least twice, in few files.
func (s *Store) SQL() string {
	return fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s (id text PRIMARY KEY, rev bigint, rec blob)
	WITH comment = '%s%d' AND gc_grace_seconds = 86400
	AND compaction = {'class': 'LeveledCompactionStrategy'};
`, s.cfg.located(), mark, version)
}

// Migrate makes the table, unless it is there. The keyspace has to be there. Let one program do it at a time: nodes
// that make a table at once disagree about it.
func (s *Store) Migrate(ctx context.Context) error {
	m, err := s.Plan(ctx)
	if err != nil || m.SQL == "" {
		return err
	}
	return s.do(ctx, func(ctx context.Context) error { return s.session.Query(m.SQL).ExecContext(ctx) })
}

// Plan says what Migrate would do, and changes nothing.
func (s *Store) Plan(ctx context.Context) (dedupstore.Migration, error) {
	l, err := s.look(ctx)
	m := dedupstore.Migration{Found: l.version, Wanted: version}
	if problem := l.unfit(); err == nil && (!l.keyspace || len(l.columns) > 0) && problem != "" {
		err = s.setup(problem, nil)
	}
	if err == nil && l.version < version {
		m.SQL = s.SQL()
	}
	return m, err
}

// A layout is what Cassandra tells of the table.
type layout struct {
	keyspace    bool
	replication map[string]string
	durable     bool
	version     int
	grace       int
	columns     map[string]string
}

// look asks for the layout.
func (s *Store) look(ctx context.Context) (l layout, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		keyspace := "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = ?"
		err := s.session.Query(keyspace, s.cfg.Keyspace).ScanContext(ctx, &l.replication, &l.durable)
		if l.keyspace = err == nil; err != nil {
			return err
		}
		const which = " WHERE keyspace_name = ? AND table_name = ?"
		table := "SELECT comment, gc_grace_seconds FROM system_schema.tables" + which
		var comment string
		err = s.session.Query(table, s.cfg.Keyspace, s.cfg.Table).ScanContext(ctx, &comment, &l.grace)
		if err != nil {
			return err
		}
		if number, ok := strings.CutPrefix(comment, mark); ok {
			l.version, _ = strconv.Atoi(number)
		}
		of := "SELECT column_name, kind, type FROM system_schema.columns" + which
		iter := s.session.Query(of, s.cfg.Keyspace, s.cfg.Table).IterContext(ctx)
		l.columns = map[string]string{}
		var name, kind, is string
		for iter.Scan(&name, &kind, &is) {
			l.columns[name] = kind + " " + is
		}
		return iter.Close()
	})
	if errors.Is(err, gocql.ErrNotFound) {
		err = nil
	}
	return l, err
}

// unfit says why the table cannot serve.
func (l layout) unfit() string {
	switch {
	case !l.keyspace:
		return "is missing, and so is its keyspace: make it by CREATE KEYSPACE, as the package doc of cassandrastore " +
			"shows, then the table by Migrate; or name another one"
	case len(l.columns) == 0:
		return "is missing: make it by Migrate or oncemill migrate, or name another one"
	case !maps.Equal(l.columns, columns):
		return fmt.Sprintf("has the columns %v, want %v: let Migrate make one of another name", l.columns, columns)
	case l.version != version:
		return fmt.Sprintf("is of version %d, want %d by its comment %q: let Migrate make one of another name",
			l.version, version, mark+strconv.Itoa(version))
	}
	return ""
}
