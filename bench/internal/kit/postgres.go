package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver"
)

// A Postgres is a server of this program's own, with an empty database. Commits wait for the disk.
type Postgres struct {
	DSN   string
	Admin *pgxpool.Pool // a connection beside those that are measured

	process *testserver.Process
	dir     string
}

const (
	postgresUser  = "postgres"       // who runs the server where this program is root, which PostgreSQL refuses, and its superuser
	postgresStart = 30 * time.Second // how long a start may take
)

// postgresSettings are the server's, beside its defaults. Checkpoints come when they are asked for: one in the middle of
// a measurement would slow it, and make the log bigger.
var postgresSettings = []string{
	"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200",
	"wal_level=logical", "max_replication_slots=20", "max_wal_senders=20",
	"shared_buffers=2GB", "max_wal_size=4GB", "checkpoint_timeout=1h",
}

// PostgresPrograms is the folder of initdb and postgres: of the newest version in Debian's place, or else of PATH.
func PostgresPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err == nil && len(found) > 0 {
		version := func(path string) int {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0: not Debian's, so the oldest
			return n
		}
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
	}
	path, err := exec.LookPath("initdb")
	return filepath.Dir(path), err
}

// StartPostgres runs PostgreSQL on a free loopback port. The caller stops it.
func StartPostgres() (*Postgres, error) {
	programs, err := PostgresPrograms()
	if err != nil {
		return nil, fmt.Errorf("kit: PostgreSQL's programs: %w", err)
	}
	dir, err := os.MkdirTemp("", "oncemill-bench-")
	if err != nil {
		return nil, err
	}
	if err := initPostgres(programs, dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	var s *Postgres
	err = testserver.OnFreePort(func(port int) (err error) {
		s, err = startPostgres(programs, dir, port)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kit: postgres: %w", err), os.RemoveAll(dir))
	}
	return s, nil
}

func initPostgres(programs, dir string) error {
	if os.Getuid() == 0 {
		u, err := user.Lookup(postgresUser)
		if err != nil {
			return fmt.Errorf("kit: PostgreSQL does not run as root: %w", err)
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2, os.Chown(dir, uid, gid)); err != nil {
			return err
		}
	}
	command := asPostgres(filepath.Join(programs, "initdb"), "-D", filepath.Join(dir, "data"), "-U", postgresUser,
		"--auth=trust", "-E", "UTF8", "--locale=C")
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it ends soon
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kit: initdb: %w\n%s", err, out)
	}
	return nil
}

// asPostgres is a command as another user where this program is root. It becomes the program, so whatever ends it ends
// the program. A change of user makes the kernel forget that it dies with this process, so setpriv asks for that again.
func asPostgres(command ...string) []string {
	if os.Getuid() != 0 {
		return command
	}
	return append([]string{"setpriv", "--reuid", postgresUser, "--regid", postgresUser, "--init-groups", "--pdeathsig", "KILL", "--"}, command...)
}

func startPostgres(programs, dir string, port int) (*Postgres, error) {
	command := asPostgres(filepath.Join(programs, "postgres"), "-D", filepath.Join(dir, "data"), "-c", "port="+strconv.Itoa(port))
	for _, setting := range postgresSettings {
		command = append(command, "-c", setting)
	}
	p, err := testserver.StartProgram(dir, command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	s := &Postgres{process: p, dir: dir}
	s.DSN = fmt.Sprintf("postgres://%s@127.0.0.1:%d/postgres?sslmode=disable&pool_max_conns=2", postgresUser, port)
	if s.Admin, err = pgxpool.New(context.Background(), s.DSN); err == nil {
		err = s.await()
	}
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return s, nil
}

// await waits until the server answers.
func (s *Postgres) await() error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := s.Admin.Ping(ctx)
		cancel()
		if err == nil || time.Since(begun) > postgresStart {
			return err
		}
		select {
		case <-again.C:
		case <-s.process.Ended():
			return errors.New("the process has ended")
		}
	}
}

// Stop ends the server and waits for its end.
func (s *Postgres) Stop() error {
	s.Admin.Close()
	return errors.Join(s.process.Stop(), os.RemoveAll(s.dir))
}

// Pool returns a new pool with so many connections. The caller closes it.
func (s *Postgres) Pool(ctx context.Context, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, config)
}

// Settle leaves the server nothing to do of what was written before: statistics are up to date, and all is on disk.
func (s *Postgres) Settle(ctx context.Context) error {
	for _, statement := range []string{"ANALYZE", "CHECKPOINT"} {
		if _, err := s.Admin.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// WAL is how many bytes of write-ahead log the server has written.
func (s *Postgres) WAL(ctx context.Context) (bytes int64, err error) {
	err = s.Admin.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`).Scan(&bytes)
	return bytes, err
}

// CPU is the time that the server with all its processes has used, user and system. It is known on Linux only; 0
// elsewhere.
func (s *Postgres) CPU(context.Context) (time.Duration, error) { return treeCPU(s.process.Pid()) }
