package mysqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/internal/testserver"
)

// files is a server's folder, and how it is started.
type files struct {
	program string // mariadbd
	dir     string
	port    int
	options []string // as on the command line, such as "--max-connections=10"
}

// need finds the programs, or ends the test.
func need(t testing.TB, options []string) files {
	t.Helper()
	for _, program := range []string{"mariadbd", "/usr/sbin/mariadbd"} {
		if path, err := exec.LookPath(program); err == nil {
			testserver.NeedProgram(t, "mariadb-install-db", "Debian: apt-get install mariadb-server")
			return files{program: path, options: options}
		}
	}
	testserver.Missing(t, "MariaDB's programs are not there (Debian: apt-get install mariadb-server); %s names a "+
		"running server by DSN where one suffices", mysqlDSN)
	panic("unreachable")
}

// init makes the folder with an empty database server.
func (f *files) init() (err error) {
	if f.dir, err = os.MkdirTemp("", "oncemill-mariadb-"); err != nil {
		return err
	}
	args := []string{
		"--no-defaults", "--datadir=" + f.data(), f.tmpdir(), "--auth-root-authentication-method=normal",
		"--skip-test-db", "--skip-name-resolve", "--innodb-flush-method=nosync", "--sync-frm=0",
	}
	cmd := exec.Command("mariadb-install-db", append(args, f.user()...)...)
	cmd.Dir = f.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("mariadb-install-db: %w\n%s", err, out), os.RemoveAll(f.dir))
	}
	return nil
}

func (f *files) data() string { return filepath.Join(f.dir, "data") }

// tmpdir keeps temporary tables apart: a server that starts removes all that it finds in its folder, also those of a
// server that is at work.
func (f *files) tmpdir() string { return "--tmpdir=" + f.dir }

// user lets root run the server, which refuses that otherwise.
func (f *files) user() []string {
	if os.Getuid() == 0 {
		return []string{"--user=root"}
	}
	return nil
}

// command starts the server. Later options win.
func (f *files) command() []string {
	command := []string{
		f.program, "--no-defaults", "--datadir=" + f.data(), f.tmpdir(), "--port=" + strconv.Itoa(f.port),
		"--bind-address=127.0.0.1", "--socket=" + filepath.Join(f.dir, "socket"),
		"--pid-file=" + filepath.Join(f.dir, "pid"), "--skip-name-resolve", "--max-connections=500",
		"--innodb-buffer-pool-size=128M", "--innodb-log-file-size=64M", "--innodb-flush-log-at-trx-commit=2",
		"--innodb-flush-method=nosync", "--sync-frm=0", // what a killed process wrote is in the kernel
	}
	return append(append(command, f.user()...), f.options...)
}

func (f *files) config() *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Net, c.Addr, c.DBName = "root", "tcp", testserver.Loopback(f.port), "mysql"
	return c
}

// start runs the server and waits until it answers.
func (f *files) start() (*testserver.Process, error) {
	return testserver.StartServer(f.dir, f.command(), testserver.WaitLimit, f.ping)
}

// ping succeeds when the server of this folder answers.
func (f *files) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	db, err := open(f.config())
	if err != nil {
		return err
	}
	defer db.Close()
	var data string
	if err := db.QueryRowContext(ctx, "SELECT @@datadir").Scan(&data); err != nil {
		return err
	}
	if filepath.Clean(data) != f.data() {
		return fmt.Errorf("a server with the data in %s has the port", data)
	}
	return nil
}

// open opens a pool whose driver keeps its complaints to itself: the callers get them as errors.
func open(c *mysql.Config) (*sql.DB, error) {
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}
