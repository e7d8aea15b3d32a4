package postgrestest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgresDSN names the environment variable with the DSN of a PostgreSQL server to use instead of starting one.
const postgresDSN = "ONCEMILL_TEST_POSTGRES"

// A Server is a PostgreSQL server for one test or for several.
type Server struct {
	*testserver.Owned
	t     testing.TB
	dsn   string
	files postgresFiles
}

// Start returns a PostgreSQL server for the test: the one whose DSN is in the environment variable
// ONCEMILL_TEST_POSTGRES, or a new one from the programs in Debian's folder or in PATH. With a config, lines like those
// of postgresql.conf, it is always a new one. It takes some seconds: a test that neither kills nor configures its
// server uses [Shared]. The superuser is postgres, without a password.
//
// wal_level is logical, and fsync is off unless the config says otherwise: commits then survive a killed server, but no
// power cut.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	testserver.Wanted(t)
	if dsn := os.Getenv(postgresDSN); dsn != "" && len(config) == 0 {
		return externalPostgres(t, dsn)
	}
	s := &Server{t: t, files: needPostgres(t, config)}
	if err := s.files.init(); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() { s.files.remove(t) })
	s.start()
	recordPostgres(t, s.dsn, "started")
	return s
}

func externalPostgres(t testing.TB, dsn string) *Server {
	t.Helper()
	recordPostgres(t, dsn, "given by "+postgresDSN)
	return &Server{Owned: testserver.Own(t, "PostgreSQL", postgresDSN, nil), t: t, dsn: dsn}
}

func (s *Server) start() {
	s.t.Helper()
	s.Owned = testserver.Own(s.t, "PostgreSQL", postgresDSN, s.files.start)
	s.Owned.Start(func(port int) error { s.files.port = port; return nil })
	s.dsn = s.files.dsn()
}

// DSN is where clients connect to: a superuser's, to the database postgres. It stays through restarts.
func (s *Server) DSN() string { return s.dsn }

// Pool returns a new pool of connections, which is closed when the test ends. The functions may change its config.
func (s *Server) Pool(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return postgresPool(t, s.dsn, configure...)
}

// A Database is one database of a server, for one test.
type Database struct{ dsn string }

// NewDatabase makes an empty database, with the options of CREATE DATABASE, which is dropped when the test ends.
func (s *Server) NewDatabase(t testing.TB, options ...string) *Database {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), databases.Add(1))
	s.execute(t, strings.Join(append([]string{"CREATE DATABASE", name}, options...), " "))
	t.Cleanup(func() { s.execute(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	u, err := url.Parse(s.dsn)
	if err != nil || u.Scheme == "" {
		t.Fatalf("testserver: %s must be a URL, postgres://...", postgresDSN)
	}
	u.Path = "/" + name
	return &Database{dsn: u.String()}
}

// execute runs one statement on a connection of its own. A server that was killed meanwhile is no failure of the test.
func (s *Server) execute(t testing.TB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testserver.WaitLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		if !s.Ours() {
			t.Errorf("testserver: connect to PostgreSQL: %v", err)
		}
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Errorf("testserver: %s: %v", statement, err)
	}
}

// DSN is where clients connect to.
func (d *Database) DSN() string { return d.dsn }

// Pool returns a new pool of connections, which is closed when the test ends. The functions may change its config.
func (d *Database) Pool(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return postgresPool(t, d.dsn, configure...)
}

func postgresPool(t testing.TB, dsn string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	for _, f := range configure {
		f(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// recordPostgres notes the version that the server says it has.
func recordPostgres(t testing.TB, dsn, how string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testserver.WaitLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("testserver: the PostgreSQL server (%s) does not answer: %v", how, err)
	}
	defer conn.Close(ctx)
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	testserver.Record(t, fmt.Sprintf("postgresql %s (%s)", version, how))
}
