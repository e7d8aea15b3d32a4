package redistest

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/redis/go-redis/v9"
)

// redisURL names the environment variable with the URL of a Redis server to use instead of starting one.
const redisURL = "ONCEMILL_TEST_REDIS"

// redisProgram is the name of the server's program in PATH.
const redisProgram = "redis-server"

// StartAt starts redis-server on a loopback port with its files in dir, and waits until it answers PING. The
// arguments are those of redis-server; without any it keeps nothing on disk. For programs that drive crash tests;
// tests use [Start].
func StartAt(dir string, port int, args ...string) (*testserver.Process, error) {
	return startProgram(redisProgram, dir, port, args...)
}

// startProgram starts a program that takes the arguments of redis-server.
func startProgram(name, dir string, port int, args ...string) (*testserver.Process, error) {
	program, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	command := []string{
		program, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--daemonize", "no", "--repl-diskless-sync-delay", "0",
	}
	return testserver.StartServer(dir, append(command, args...), testserver.WaitLimit, answers(port))
}

// answers looks whether a server answers on a port, be it with a demand to authenticate.
func answers(port int) func() error { return func() error { return ping(testserver.Loopback(port)) } }

func ping(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "+PONG") && !strings.HasPrefix(line, "-NOAUTH") {
		return fmt.Errorf("PING was answered with %q", strings.TrimSpace(line))
	}
	return nil
}

// A Server is a Redis server for one test.
type Server struct {
	Addr string // host:port

	*testserver.Owned
	t       testing.TB
	options *redis.Options
	program string // its name or path; empty: redis-server
	dir     string
	port    int
	args    []string
}

// Start returns a Redis server for the test: the one at the URL in the environment variable ONCEMILL_TEST_REDIS, or a
// new one from the redis-server in PATH. With arguments for redis-server it is always a new one. A new server is empty
// and keeps nothing on disk unless the arguments say so. A server from the environment may be shared: tests use keys of
// their own and never flush.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	testserver.Wanted(t)
	if url := os.Getenv(redisURL); url != "" && len(args) == 0 {
		return externalRedis(t, url)
	}
	needRedis(t)
	s := &Server{t: t, args: args, dir: t.TempDir()}
	s.startOnFreePort(testserver.FreePort)
	testserver.Record(t, fmt.Sprintf("redis-server %s (started, single)", redisVersion(t)))
	return s
}

func needRedis(t testing.TB) {
	t.Helper()
	testserver.Wanted(t)
	if _, err := exec.LookPath(redisProgram); err != nil {
		testserver.Missing(t, "redis-server is not in PATH (Debian: apt-get install redis-server); %s names a running server by URL where one suffices", redisURL)
	}
}

func externalRedis(t testing.TB, url string) *Server {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatalf("testserver: %s: %v", redisURL, err)
	}
	o.ContextTimeoutEnabled = true
	s := &Server{Owned: testserver.Own(t, "Redis", redisURL, nil), t: t, Addr: o.Addr, options: o}
	ctx, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
	defer cancel()
	info, err := s.Client().Info(ctx, "server").Result()
	if err != nil {
		t.Fatalf("testserver: the server of %s does not answer: %v", redisURL, err)
	}
	what := "redis-server unknown"
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
			what = "redis-server " + strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "valkey_version:"); ok { // it comes after the version of Redis it stands for
			what = "valkey-server " + strings.TrimSpace(v)
			break
		}
	}
	testserver.Record(t, fmt.Sprintf("%s (given by %s)", what, redisURL))
	return s
}

func (s *Server) run() (*testserver.Process, error) {
	return startProgram(cmp.Or(s.program, redisProgram), s.dir, s.port, s.args...)
}

// startOnFreePort starts the server, on another port if somebody took the first.
func (s *Server) startOnFreePort(port func() (int, error)) {
	s.t.Helper()
	s.Owned = testserver.Own(s.t, "Redis", redisURL, s.run)
	s.Owned.Start(func(int) (err error) {
		s.port, err = port()
		return err
	})
	s.Addr = testserver.Loopback(s.port)
	s.options = &redis.Options{Addr: s.Addr, ContextTimeoutEnabled: true}
}

// Options returns new options for a client of this server, which heeds contexts.
func (s *Server) Options() *redis.Options {
	o := *s.options
	return &o
}

// Client returns a new client, which is closed when the test ends.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(s.Options())
	s.t.Cleanup(func() { c.Close() })
	return c
}

// redisVersion asks the program in PATH.
func redisVersion(t testing.TB) string {
	t.Helper()
	return testserver.ProgramVersion(t, redisProgram)
}
