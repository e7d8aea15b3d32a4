package postgrestest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// bouncers are the connections that a PgBouncer has to its server: fewer than its clients have, and more than the transactions that
// a test has open at once.
const bouncers = 12

// PgBouncerPool returns a new pool of connections to the database of a DSN, through a new PgBouncer in transaction mode from
// the program in PATH. It is closed when the test ends; the functions may change its config. Its mode is
// pgx.QueryExecModeExec, which needs nothing that outlives a transaction. A machine need not have PgBouncer: without it
// the test is skipped, also with CI=true, and recorded as skipped.
func PgBouncerPool(t testing.TB, dsn string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return postgresPool(t, pgBouncer(t, dsn), append([]func(*pgxpool.Config){func(c *pgxpool.Config) {
		c.MaxConns = 2 * bouncers
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}}, configure...)...)
}

// pgBouncer starts a PgBouncer before the server of a DSN, and returns the DSN of the same database through it.
func pgBouncer(t testing.TB, dsn string) string {
	t.Helper()
	testserver.Wanted(t)
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		testserver.Optional(t, "pgbouncer is not in PATH (Debian: apt-get install pgbouncer)")
	}
	server, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	files := needPostgres(t, nil) // it does not run as root either
	files.programs = filepath.Dir(program)
	if err := files.makeDir("oncemill-pgbouncer-"); err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(files.dir) })
	var p *testserver.Process
	err = testserver.OnFreePort(func(port int) (err error) {
		files.port = port
		p, err = startPgBouncer(&files, server)
		return err
	})
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	t.Cleanup(func() { p.Kill() })
	testserver.Record(t, fmt.Sprintf("pgbouncer %s (started, transaction mode)", testserver.ProgramVersion(t, program)))
	return behind(server, files.port)
}

// behind is the DSN of the same database through a PgBouncer.
func behind(server *url.URL, port int) string {
	through := *server
	through.Host = testserver.Loopback(port)
	return through.String()
}

func startPgBouncer(files *postgresFiles, server *url.URL) (*testserver.Process, error) {
	settings := []string{
		"[databases]", fmt.Sprintf("* = host=%s port=%s user=%s", server.Hostname(), server.Port(), server.User.Username()),
		"[pgbouncer]", "listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(files.port), "unix_socket_dir =", "auth_type = any",
		"pool_mode = transaction", "default_pool_size = " + strconv.Itoa(bouncers), "max_client_conn = 200",
	}
	name := filepath.Join(files.dir, "pgbouncer.ini")
	if err := os.WriteFile(name, []byte(strings.Join(settings, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	return testserver.StartServer(files.dir, files.command("pgbouncer", name), testserver.WaitLimit, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, behind(server, files.port))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}
