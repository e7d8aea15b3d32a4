package http_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// The environment of a process that will be killed.
const (
	childStore = "ONCEMILL_TEST_IDEMPOTENCY_STORE"
	childPlace = "ONCEMILL_TEST_IDEMPOTENCY_PLACE"
)

// Where a process stops to get killed: the value of the header Stop.
const (
	beforeEffect = "before the effect"
	afterEffect  = "after the effect"
	beforeReply  = "before the response leaves"
)

const childLease = 1500 * time.Millisecond // a claim gets a sixth of it: enough on a machine that is busy

// child is the process: a shop that says where it listens.
func child() {
	go func() { // it ends with its parent
		io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	if err := runChild(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runChild() error {
	b, _, err := open(context.Background(), os.Getenv(childStore), os.Getenv(childPlace))
	if err != nil {
		return err
	}
	guard, err := oncemill.NewGuard(b.Store, oncemill.Policy{Lease: childLease, Logger: keytest.Quiet()})
	if err != nil {
		return err
	}
	keys, err := idempotencykey.New(guard, idempotencykey.Config{Account: idempotencykey.SingleTenant})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(keytest.Route, keys.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run := oncemill.FromContext(r.Context())
		stopAt(r, beforeEffect)
		if err := b.Pay(r, run.ID("payments")); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		stopAt(r, afterEffect)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "paid %s in run %d", run.ID("payments"), run.Fence)
	})))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening", l.Addr())
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(&stoppingWriter{w, r}, r)
	}))
}

// stopAt says that the process can be killed, and waits for it.
func stopAt(r *http.Request, where string) {
	if r.Header.Get("Stop") == where {
		fmt.Println("stopped")
		select {}
	}
}

// A stoppingWriter stops when the response is about to leave.
type stoppingWriter struct {
	http.ResponseWriter
	r *http.Request
}

func (w *stoppingWriter) WriteHeader(status int) {
	stopAt(w.r, beforeReply)
	w.ResponseWriter.WriteHeader(status)
}

// A process is a shop that can be killed.
type process struct {
	cmd    *exec.Cmd
	lines  *bufio.Reader
	url    string
	errors *strings.Builder
}

func start(t testing.TB, kind, place string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^$"), errors: &strings.Builder{}}
	p.cmd.Env = append(os.Environ(), childStore+"="+kind, childPlace+"="+place)
	p.cmd.Stderr = p.errors
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	p.lines = bufio.NewReader(out)
	p.url = "http://" + strings.TrimPrefix(p.line(t), "listening ") + keytest.Route
	return p
}

func (p *process) line(t testing.TB) string {
	t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the process ended: %v: %s", err, p.errors)
	}
	return strings.TrimSpace(line)
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// post sends a payment to a process.
func (p *process) post(client *http.Client, k, stop string) keytest.Answer {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.url, strings.NewReader("{}"))
	if err != nil {
		return keytest.Answer{Err: err}
	}
	r.Header.Set("Idempotency-Key", k)
	r.Header.Set("Stop", stop)
	return keytest.Do(client, r)
}

// settle repeats a payment until its key is neither busy nor unavailable.
func (p *process) settle(t testing.TB, client *http.Client, k string) (a keytest.Answer) {
	t.Helper()
	keytest.Until(t, "the payment "+k+" has an outcome", func() bool {
		a = p.post(client, k, "")
		return a.Err == nil && a.Status != http.StatusConflict && a.Status != http.StatusServiceUnavailable
	})
	return a
}

func newClient(t testing.TB) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
