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
	t       testing.TB
	config  *mysql.Config
	process *testserver.Process // nil: shared, or run by somebody else
	files   files
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
	s.startOnFreePort()
	t.Cleanup(func() { s.process.Kill() })
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
	return &Server{t: t, config: config}
}

// startOnFreePort starts the server, on another port if somebody took the first.
func (s *Server) startOnFreePort() {
	s.t.Helper()
	err := testserver.OnFreePort(func(port int) (err error) {
		s.files.port = port
		s.process, err = s.files.start()
		return err
	})
	if err != nil {
		s.t.Fatalf("testserver: %v", err)
	}
	s.config = s.files.config()
}

// Addr is the host and port of the server. It stays through restarts.
func (s *Server) Addr() string { return s.config.Addr }

// Process is the server's process. A test that asks for it is skipped where somebody else runs the server.
func (s *Server) Process() *testserver.Process {
	s.t.Helper()
	if s.process == nil {
		testserver.Missing(s.t, "the test controls its server's process, which it cannot with the server that %s names",
			mysqlDSN)
	}
	return s.process
}

// Kill ends the server with SIGKILL and waits for its end.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.Process().Kill(); err != nil {
		s.t.Fatalf("testserver: kill mariadbd: %v", err)
	}
}

// Restart starts the server again after Kill, on the same files and port, and waits until it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Process()
	var err error
	for range 5 {
		var p *testserver.Process
		if p, err = s.files.start(); err == nil {
			s.process = p
			return
		}
	}
	s.t.Fatalf("testserver: restart: %v", err)
}

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
	if err := db.PingContext(ctx); err != nil && s.process != nil {
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
