package postgrestest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/jackc/pgx/v5"
)

// databases counts the databases of this process, which share a server with others.
var databases atomic.Int64

// postgresUser is who runs the server where the test is root: PostgreSQL refuses that.
const postgresUser = "postgres"

// postgresFiles is a server's folder, and how it is started.
type postgresFiles struct {
	programs string // folder of initdb and postgres
	dir      string
	port     int
	config   []string // name=value
}

// needPostgres finds the programs, or ends the test.
func needPostgres(t testing.TB, config []string) postgresFiles {
	t.Helper()
	programs := postgresPrograms()
	if programs == "" {
		testserver.Missing(t, "PostgreSQL's programs are not there (Debian: apt-get install postgresql); %s names a running server by DSN where one suffices", postgresDSN)
	}
	if os.Getuid() == 0 {
		if _, err := user.Lookup(postgresUser); err != nil {
			testserver.Missing(t, "PostgreSQL does not run as root, and there is no user %s", postgresUser)
		}
		if _, err := exec.LookPath("setpriv"); err != nil {
			testserver.Missing(t, "PostgreSQL does not run as root, and setpriv (util-linux) is not in PATH")
		}
	}
	return postgresFiles{programs: programs, config: config}
}

// postgresPrograms is the folder of the newest version in Debian's place, or of the one in PATH.
func postgresPrograms() string {
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(folders, func(a, b string) int { return postgresVersion(b) - postgresVersion(a) })
	if path, err := exec.LookPath("initdb"); err == nil {
		folders = append(folders, filepath.Dir(path))
	}
	for _, folder := range folders {
		if _, err := os.Stat(filepath.Join(folder, "initdb")); err == nil {
			return folder
		}
	}
	return ""
}

func postgresVersion(folder string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(folder)))
	return n
}

// command runs a program of the server, as another user where this one is root. It becomes the program: what kills it
// kills the program.
func (f *postgresFiles) command(program string, args ...string) []string {
	command := append([]string{filepath.Join(f.programs, program)}, args...)
	if os.Getuid() != 0 {
		return command
	}
	// The kernel forgets the parent-death signal when the user changes, so setpriv asks for it again.
	return append([]string{"setpriv", "--reuid", postgresUser, "--regid", postgresUser, "--init-groups", "--pdeathsig", "KILL", "--"}, command...)
}

// makeDir makes the folder. It is no folder of the test's: another user must reach it.
func (f *postgresFiles) makeDir(prefix string) (err error) {
	if f.dir, err = os.MkdirTemp("", prefix); err != nil {
		return err
	}
	return f.own(f.dir)
}

// remove removes what the ended server leaves.
func (f *postgresFiles) remove(t testing.TB) {
	t.Helper()
	cmd := exec.Command("sh", "-c", testserver.Remove)
	cmd.Env = append(os.Environ(), "dir="+f.dir)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("testserver: remove what PostgreSQL left: %v\n%s", err, out)
	}
}

// init makes the folder with an empty cluster.
func (f *postgresFiles) init() error {
	if err := f.makeDir("oncemill-postgres-"); err != nil {
		return err
	}
	command := f.command("initdb", "-D", f.data(), "-U", postgresUser, "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = f.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("initdb: %w\n%s", err, out), os.RemoveAll(f.dir))
	}
	return nil
}

func (f *postgresFiles) data() string { return filepath.Join(f.dir, "data") }

// own gives a folder to the user that runs the server.
func (f *postgresFiles) own(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup(postgresUser)
	if err != nil {
		return err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

// server is the command of the server. Later settings win.
func (f *postgresFiles) server() []string {
	settings := []string{
		"port=" + strconv.Itoa(f.port), "listen_addresses=127.0.0.1", "unix_socket_directories=",
		"wal_level=logical", "max_replication_slots=20", "max_wal_senders=20", "max_connections=200", "fsync=off",
		"dynamic_shared_memory_type=mmap", // in the folder, so that a killed server leaves nothing in /dev/shm
	}
	args := []string{"-D", f.data()}
	for _, s := range append(settings, f.config...) {
		args = append(args, "-c", s)
	}
	return f.command("postgres", args...)
}

func (f *postgresFiles) dsn() string {
	u := url.URL{Scheme: "postgres", User: url.User(postgresUser), Host: testserver.Loopback(f.port), Path: "/postgres", RawQuery: "sslmode=disable"}
	return u.String()
}

// start runs the server and waits until it answers.
func (f *postgresFiles) start() (*testserver.Process, error) {
	return testserver.StartServer(f.dir, f.server(), testserver.WaitLimit, f.ping)
}

// ping succeeds when the server of this folder answers.
func (f *postgresFiles) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.dsn())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var data string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return err
	}
	if data != f.data() {
		return fmt.Errorf("a server with the data in %s has the port", data)
	}
	return nil
}
