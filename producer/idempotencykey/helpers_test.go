package idempotencykey_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newMemory(t testing.TB) *dedupstore.Memory {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newGuard(t testing.TB, store dedupstore.Store, p oncemill.Policy) *oncemill.Guard {
	t.Helper()
	if p.Logger == nil {
		p.Logger = quiet()
	}
	g, err := oncemill.NewGuard(store, p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func newMiddleware(t testing.TB, g *oncemill.Guard, c idempotencykey.Config) *idempotencykey.Middleware {
	t.Helper()
	if c.Account == nil {
		c.Account = idempotencykey.SingleTenant
	}
	m, err := idempotencykey.New(g, c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A rig is a service with one route behind a middleware, on a real server.
type rig struct {
	t      testing.TB
	server *httptest.Server
	client *http.Client
}

const route = "/payments"

// serve starts a service whose handler of all methods of /payments, and below it, is guarded.
func serve(t testing.TB, g *oncemill.Guard, c idempotencykey.Config, handler http.HandlerFunc) *rig {
	t.Helper()
	return serveOver(t, newMiddleware(t, g, c), handler)
}

// serveOver is serve over a middleware.
func serveOver(t testing.TB, m *idempotencykey.Middleware, handler http.HandlerFunc) *rig {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(route, m.Wrap(handler))
	mux.Handle(route+"/{id}", m.Wrap(handler))
	return serveHandler(t, mux)
}

// serveLinger is serveMemory over a guard, where runs go on for a certain time after their clients have gone.
func serveLinger(t testing.TB, g *oncemill.Guard, c idempotencykey.Config, linger time.Duration,
	handler http.HandlerFunc) *rig {
	t.Helper()
	m := newMiddleware(t, g, c)
	m.SetLinger(linger)
	return serveOver(t, m, handler)
}

// serveMemory is serve over a store in memory with the default policy.
func serveMemory(t testing.TB, c idempotencykey.Config, handler http.HandlerFunc) *rig {
	t.Helper()
	return serve(t, newGuard(t, newMemory(t), oncemill.Policy{}), c, handler)
}

func serveHandler(t testing.TB, h http.Handler) *rig {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError)
	s.Start()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	t.Cleanup(func() { client.CloseIdleConnections(); s.Close() })
	return &rig{t, s, client}
}

// An answer is a response that was read to its end.
type answer struct {
	status  int
	header  http.Header
	body    string
	trailer http.Header
	err     error // of sending, or of reading the body
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// problem is the code of a problem, or "".
func (a answer) problem() string {
	if a.header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	var p struct {
		Type   string
		Title  string
		Code   string
		Status int
	}
	if json.Unmarshal([]byte(a.body), &p) != nil || p.Title == "" || p.Status != a.status ||
		!strings.HasSuffix(p.Type, "#"+p.Code) {
		return "not a problem as RFC 9457 writes it: " + a.body
	}
	return p.Code
}

type option func(*http.Request)

func key(k string) option { return header("Idempotency-Key", k) }

func header(name, value string) option {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func (rg *rig) send(method, path, body string, options ...option) answer {
	rg.t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, rg.server.URL+path, strings.NewReader(body))
	if err != nil {
		rg.t.Fatal(err)
	}
	for _, o := range options {
		o(r)
	}
	return do(rg.client, r)
}

func do(client *http.Client, r *http.Request) answer {
	resp, err := client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(data), resp.Trailer, err}
}

// pay sends a payment under a key.
func (rg *rig) pay(k string, options ...option) answer {
	rg.t.Helper()
	return rg.send(http.MethodPost, route, `{"amount":100}`, append(options, key(k))...)
}

// want fails the test unless an answer has a status, and is a replay or not.
func want(t testing.TB, a answer, status int, replayed bool) {
	t.Helper()
	if a.err != nil {
		t.Fatalf("no answer: %v", a.err)
	}
	if a.status != status || a.replayed() != replayed {
		t.Fatalf("answered %d, replayed %v, %s; want %d, replayed %v", a.status, a.replayed(), a.body, status, replayed)
	}
}

// wantProblem fails the test unless an answer is a certain problem.
func wantProblem(t testing.TB, a answer, status int, code string) {
	t.Helper()
	if a.err != nil {
		t.Fatalf("no answer: %v", a.err)
	}
	if a.status != status || a.problem() != code {
		t.Fatalf("answered %d %q: %s; want %d %q", a.status, a.problem(), a.body, status, code)
	}
}

// until waits for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// A ledger counts payments, and says how many runs there were of each.
type ledger struct {
	mu   sync.Mutex
	runs map[string]int
}

func (l *ledger) add(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs == nil {
		l.runs = map[string]int{}
	}
	l.runs[id]++
	return l.runs[id]
}

func (l *ledger) total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.runs {
		n += r
	}
	return n
}

// charge is a handler that has an effect and says which.
func (l *ledger) charge(w http.ResponseWriter, r *http.Request) {
	run := oncemill.FromContext(r.Context())
	l.add(run.Key.ID)
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Location", "/payments/"+run.ID("payments"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	w.Write(append([]byte("charged "), bytes.TrimSpace(body)...))
}
