package dynamotest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

// version is the dynalite that tests run.
const version = "4.0.0"

// endpointURL names the environment variable with the endpoint of a server to use instead of starting one.
const endpointURL = "ONCEMILL_TEST_DYNAMODB"

// errNoNPM says that dynalite is not there, and that there is nothing to get it with.
var errNoNPM = errors.New("node and npm are not in PATH, or dynalite is not in the user's cache")

// serve runs dynalite from a folder on a port. It would end at a client that goes in the middle of its request. And it
// would close each connection on which it reads nothing for five seconds: if it is busy for as long, with requests that
// wait in them.
const serve = `
process.on("uncaughtException", e => { if (e.code !== "ECONNRESET") { console.error(e); process.exit(1) } })
require(process.argv[1])({ createTableMs: 5, deleteTableMs: 5 }).listen(+process.argv[2], "127.0.0.1")
	.keepAliveTimeout = 0`

// program returns the folder of dynalite, which it fetches once for all later runs.
var program = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir, err := fetch(filepath.Join(cache, "oncemill"))
	return filepath.Join(dir, "node_modules", "dynalite"), err
})

// fetch fetches dynalite into a folder below base, unless it is there. The folder comes into being at once, so that one
// that is there is complete.
func fetch(base string) (string, error) {
	dir := filepath.Join(base, "dynalite-"+version)
	there := func() bool {
		_, err := os.Stat(dir)
		return err == nil
	}
	if _, err := exec.LookPath("node"); err != nil {
		return "", errNoNPM
	}
	if there() {
		return dir, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errNoNPM
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	unlock, err := testserver.LockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if there() {
		return dir, nil
	}
	part, err := os.MkdirTemp(base, "dynalite-"+version+"-part-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	fmt.Fprintf(os.Stderr, "testserver: npm fetches dynalite %s, once\n", version)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "install", "--prefix", part, "--ignore-scripts", "--no-audit", "--no-fund",
		"dynalite@"+version)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("fetch dynalite with npm: %w", err)
	}
	return dir, os.Rename(part, dir)
}

// shared is the server of this process.
var shared struct {
	testserver.Shared
	endpoint string
}

// Shared returns the endpoint of the server that the tests of this process share, and starts it for the first of
// them; or the endpoint that ONCEMILL_TEST_DYNAMODB names. It takes any region and credentials. Each test makes a
// table of its own. The server ends with the process, however that ends.
func Shared(t testing.TB) string {
	t.Helper()
	testserver.Wanted(t)
	if given := os.Getenv(endpointURL); given != "" {
		testserver.Record(t, "DynamoDB endpoint (given by "+endpointURL+")")
		return given
	}
	folder, err := program()
	if errors.Is(err, errNoNPM) {
		testserver.Missing(t, "%v (Debian: apt-get install npm); %s names a running server", err, endpointURL)
	} else if err != nil {
		t.Fatalf("testserver: dynalite: %v", err)
	}
	shared.Start(t, func() (alive *os.File, err error) {
		err = testserver.OnFreePort(func(port int) (err error) {
			shared.endpoint, alive, err = start(folder, port)
			return err
		})
		return alive, err
	})
	testserver.Record(t, "dynalite "+version+" (started)")
	return shared.endpoint
}

// start starts a server and waits until it answers.
func start(folder string, port int) (endpoint string, alive *os.File, err error) {
	dir, err := os.MkdirTemp("", "oncemill-dynalite-")
	if err != nil {
		return "", nil, err
	}
	command := []string{"node", "-e", serve, folder, strconv.Itoa(port)}
	endpoint = "http://" + testserver.Loopback(port)
	ctx, cancel := context.WithTimeout(context.Background(), testserver.WaitLimit)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	alive, err = testserver.StartWatched(dir, command, testserver.WaitLimit, func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint, nil)
		if err != nil {
			return err
		}
		reply, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		return reply.Body.Close()
	})
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	return endpoint, alive, nil
}
