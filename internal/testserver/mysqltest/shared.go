package mysqltest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// shared is the server of this process. It lives until the process ends.
var shared struct {
	mu    sync.Mutex
	files files
	alive *os.File // what the watcher of the server reads; never closed, so that it ends with this process
	err   error
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
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.alive == nil && shared.err == nil {
		shared.files = need(t, nil)
		if shared.err = shared.files.init(); shared.err == nil {
			for range 3 { // somebody may take a port
				if shared.alive, shared.err = startShared(&shared.files); shared.err == nil {
					break
				}
			}
		}
	}
	if shared.err != nil {
		t.Fatalf("testserver: the shared MariaDB: %v", shared.err)
	}
	config := shared.files.config()
	record(t, config, "started")
	return &Server{t: t, config: config}
}

// startShared starts the server and waits until it answers.
func startShared(f *files) (alive *os.File, err error) {
	if f.port, err = testserver.FreePort(); err != nil {
		return nil, err
	}
	if alive, err = testserver.StartWatched(f.dir, f.command()); err != nil {
		return nil, err
	}
	if err := f.await(nil); err != nil {
		log, _ := os.ReadFile(filepath.Join(f.dir, "log"))
		alive.Close()
		return nil, fmt.Errorf("mariadbd on port %d: %w\n%s", f.port, err, log[max(0, len(log)-4096):])
	}
	return alive, nil
}
