package mysqltest

import (
	"os"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// shared is the server of this process.
var shared struct {
	testserver.Shared
	files files
}

// Shared returns the server that the tests of this process share, and starts it for the first of them; or the one that
// ONCEMILL_TEST_MYSQL names. Each test makes a database of its own there. Nobody stops or configures it; it ends with
// the process, however that ends.
func Shared(t testing.TB) *Server {
	t.Helper()
	testserver.Wanted(t)
	if dsn := os.Getenv(mysqlDSN); dsn != "" {
		return external(t, dsn)
	}
	shared.Start(t, func() (*os.File, error) {
		shared.files = need(t, nil)
		return shared.files.share()
	})
	config := shared.files.config()
	record(t, config, "started")
	return &Server{Owned: testserver.Own(t, "MariaDB", mysqlDSN, nil), t: t, config: config}
}

// share makes the folder and starts the server, which ends with this process.
func (f *files) share() (alive *os.File, err error) {
	if err := f.init(); err != nil {
		return nil, err
	}
	err = testserver.OnFreePort(func(port int) (err error) {
		f.port = port
		alive, err = testserver.StartWatched(f.dir, f.command(), testserver.WaitLimit, f.ping)
		return err
	})
	return alive, err
}
