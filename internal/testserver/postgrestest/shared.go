package postgrestest

import (
	"os"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// shared is the server of this process.
var shared struct {
	testserver.Shared
	files postgresFiles
}

// Shared returns the server that the tests of this process share, and starts it for the first of them; or the one
// that ONCEMILL_TEST_POSTGRES names. Each test makes a database of its own there. Nobody stops or configures it; it ends
// with the process, however that ends.
func Shared(t testing.TB) *Server {
	t.Helper()
	testserver.Wanted(t)
	if dsn := os.Getenv(postgresDSN); dsn != "" {
		return externalPostgres(t, dsn)
	}
	shared.Start(t, func() (*os.File, error) {
		shared.files = needPostgres(t, nil)
		return shared.files.share()
	})
	recordPostgres(t, shared.files.dsn(), "started")
	return &Server{Owned: testserver.Own(t, "PostgreSQL", postgresDSN, nil), t: t, dsn: shared.files.dsn()}
}

// share makes the folder and starts the server, which ends with this process.
func (f *postgresFiles) share() (alive *os.File, err error) {
	if err := f.init(); err != nil {
		return nil, err
	}
	err = testserver.OnFreePort(func(port int) (err error) {
		f.port = port
		alive, err = testserver.StartWatched(f.dir, f.server(), testserver.WaitLimit, f.ping)
		return err
	})
	return alive, err
}
