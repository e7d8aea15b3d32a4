package shoptest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/testserver"
)

// asProgram is the environment variable that turns a test binary into the example that it tests.
const asProgram = "ONCEMILL_EXAMPLE_AS_PROGRAM"

// Main runs the tests of an example, or the example.
func Main(m *testing.M, e shop.Example) {
	if os.Getenv(asProgram) != "" {
		os.Exit(e.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// A process is an example in a process of its own.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	ended          chan struct{}
	err            error // once it has ended
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0], args...), ended: make(chan struct{})} // killed when the test ends
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() { <-p.ended })
	return p
}

// end waits for a process that must end well.
func (p *process) end() {
	p.t.Helper()
	<-p.ended
	if p.err != nil {
		p.t.Fatalf("%v: %v\n%s%s", p.cmd.Args[1:], p.err, &p.stdout, &p.stderr)
	}
}

func (p *process) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
	p.end()
}

// Processes runs producer and consumer in processes of their own: the consumer is terminated in the middle and another
// one takes over, and a second producer places all orders of the first again.
func Processes(t *testing.T, servers ...string) {
	ledger := filepath.Join(t.TempDir(), "ledger")
	run := "t" + strconv.FormatInt(time.Now().UnixNano(), 36) // servers that were given remember earlier tests
	args := append([]string{"-orders", "100", "-run", run, "-ledger", ledger, "-out", "json"}, servers...)
	role := func(name string) *process { return start(t, append(args, "-role", name)...) }

	first := role(shop.RoleConsumer)
	producer := role(shop.RoleProducer)
	first.awaitEntries(ledger, 25, "charge ")
	first.terminate()
	second := role(shop.RoleConsumer)
	producer.end()
	role(shop.RoleProducer).end()
	second.awaitEntries(ledger, 100, "charge ", "decline ")
	second.terminate()

	var b shop.Books
	if err := json.Unmarshal(second.stdout.Bytes(), &b); err != nil {
		t.Fatalf("%v\n%s%s", err, &second.stdout, &second.stderr)
	}
	if !b.Balance() || b.Orders != 100 || b.Copies < 100 || b.Retries == 0 {
		t.Errorf("%+v\n%s", b, &second.stderr)
	}
}

// RedisURL is where a Redis server for tests is.
func RedisURL(t *testing.T) string {
	t.Helper()
	server := testserver.Redis(t)
	return cmp.Or(os.Getenv("ONCEMILL_TEST_REDIS"), "redis://"+server.Addr)
}

// awaitEntries waits until the ledger has so many lines that begin in one of the ways. The process is to write them.
func (p *process) awaitEntries(ledger string, want int, begin ...string) {
	p.t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(time.Minute); ; {
		text, err := os.ReadFile(ledger)
		if err != nil && !os.IsNotExist(err) {
			p.t.Fatal(err)
		}
		n := 0
		for _, b := range begin {
			n += strings.Count("\n"+string(text), "\n"+b)
		}
		if n >= want {
			return
		}
		if time.Now().After(end) {
			p.terminate()
			p.t.Fatalf("the ledger has %d lines %q, want %d\n%s%s", n, begin, want, &p.stdout, &p.stderr)
		}
		select {
		case <-look.C:
		case <-p.ended:
			p.end()
			p.t.Fatalf("the process has ended by itself\n%s%s", &p.stdout, &p.stderr)
		}
	}
}
