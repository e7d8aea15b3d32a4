package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/internal/testserver"
)

// mysqlDSN names the environment variable with the DSN, as the driver reads it, of a MySQL or MariaDB server to use
// instead of starting one. Its user may make databases.
const mysqlDSN = "ONCEMILL_TEST_MYSQL"

// databases counts the databases of this process, which share a server with others.
var databases atomic.Int64

// A Server is a MariaDB server for one test or for several.
type Server struct {
	*testserver.Owned
	t      testing.TB
	config *mysql.Config
	files  files
}

// Start returns a server for the test: the one whose DSN is in the environment variable ONCEMILL_TEST_MYSQL, or a new
// one. With options, as of mariadbd's command line, it is always a new one. It takes some seconds: a test that neither
// kills nor configures its server uses [Shared]. The user is root, without a password.
//
// What is committed survives a killed server, but no power cut.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	testserver.Wanted(t)
	if dsn := os.Getenv(mysqlDSN); dsn != "" && len(options) == 0 {
		return external(t, dsn)
	}
	s := &Server{t: t, files: need(t, options)}
	if err := s.files.init(); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(s.files.dir) })
	s.Owned = testserver.Own(t, "MariaDB", mysqlDSN, s.files.start)
	s.Owned.Start(func(port int) error { s.files.port = port; return nil })
	s.config = s.files.config()
	record(t, s.config, "started")
	return s
}

func external(t testing.TB, dsn string) *Server {
	t.Helper()
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("testserver: %s: %v", mysqlDSN, err)
	}
	record(t, config, "given by "+mysqlDSN)
	return &Server{Owned: testserver.Own(t, "MariaDB", mysqlDSN, nil), t: t, config: config}
}

// Addr is the host and port of the server. It stays through restarts.
func (s *Server) Addr() string { return s.config.Addr }

// A Database is one database of a server, for one test.
type Database struct{ config *mysql.Config }

// NewDatabase makes an empty database, with the options of CREATE DATABASE, which is dropped when the test ends.
func (s *Server) NewDatabase(t testing.TB, options ...string) *Database {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), databases.Add(1))
	s.execute(t, strings.Join(append([]string{"CREATE DATABASE", name}, options...), " "))
	t.Cleanup(func() { s.execute(t, "DROP DATABASE IF EXISTS "+name) })
	return s.Database(name)
}

// Database is one that somebody else makes on the server.
func (s *Server) Database(name string) *Database {
	config := s.config.Clone()
	config.DBName = name
	return &Database{config}
}

// execute runs one statement on a connection of its own. A server that was killed meanwhile is no failure of the test.
func (s *Server) execute(t testing.TB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testserver.WaitLimit)
	defer cancel()
	db, err := open(s.config.Clone())
	if err != nil {
		t.Errorf("testserver: %v", err)
		return
	}
	defer db.Close()
	if err := db.PingContext(ctx); err != nil && s.Ours() {
		return
	}
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Errorf("testserver: %s: %v", statement, err)
	}
}

// DSN is where clients connect to, as the driver reads it.
func (d *Database) DSN() string { return d.config.FormatDSN() }

// URL is where clients connect to, as the program oncemill reads it.
func (d *Database) URL() string {
	user := url.User(d.config.User)
	if d.config.Passwd != "" {
		user = url.UserPassword(d.config.User, d.config.Passwd)
	}
	u := url.URL{Scheme: "mysql", User: user, Host: d.config.Addr, Path: "/" + d.config.DBName}
	return u.String()
}

// Open returns a new pool of connections, which is closed when the test ends. The functions may change its config.
func (d *Database) Open(t testing.TB, configure ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	config := d.config.Clone()
	for _, f := range configure {
		f(config)
	}
	db, err := open(config)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// record notes the version that the server says it has.
func record(t testing.TB, config *mysql.Config, how string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testserver.WaitLimit)
	defer cancel()
	db, err := open(config.Clone())
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	defer db.Close()
	var version string
	if err := db.QueryRowContext(ctx, "SELECT version()").Scan(&version); err != nil {
		t.Fatalf("testserver: the MySQL server (%s) does not answer: %v", how, err)
	}
	testserver.Record(t, fmt.Sprintf("mysql %s (%s)", version, how))
}
