package keytest

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// NewMemory returns an empty store in memory.
func NewMemory(t testing.TB) *dedupstore.Memory {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Quiet logs nowhere.
func Quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// NewGuard returns a guard, which is quiet unless its policy has a logger.
func NewGuard(t testing.TB, store dedupstore.Store, p oncemill.Policy) *oncemill.Guard {
	t.Helper()
	if p.Logger == nil {
		p.Logger = Quiet()
	}
	g, err := oncemill.NewGuard(store, p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// NewMiddleware returns a middleware, of a single tenant unless its configuration has accounts.
func NewMiddleware(t testing.TB, g *oncemill.Guard, c idempotencykey.Config) *idempotencykey.Middleware {
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

// A Rig is a service with one route behind a middleware, on a real server.
type Rig struct {
	t      testing.TB
	Server *httptest.Server
	Client *http.Client
}

// Route is where a Rig takes payments.
const Route = "/payments"

// Serve starts a service whose handler of all methods of /payments, and below it, is guarded.
func Serve(t testing.TB, g *oncemill.Guard, c idempotencykey.Config, handler http.HandlerFunc) *Rig {
	t.Helper()
	return ServeOver(t, NewMiddleware(t, g, c), handler)
}

// ServeOver is Serve over a middleware.
func ServeOver(t testing.TB, m *idempotencykey.Middleware, handler http.HandlerFunc) *Rig {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(Route, m.Wrap(handler))
	mux.Handle(Route+"/{id}", m.Wrap(handler))
	return ServeHandler(t, mux)
}

// ServeHandler starts a service of one handler.
func ServeHandler(t testing.TB, h http.Handler) *Rig {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelError)
	s.Start()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}
	t.Cleanup(func() { client.CloseIdleConnections(); s.Close() })
	return &Rig{t, s, client}
}

// An Answer is a response that was read to its end.
type Answer struct {
	Status  int
	Header  http.Header
	Body    string
	Trailer http.Header
	Err     error // of sending, or of reading the body
}

// Replayed says whether the response was stored before.
func (a Answer) Replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

// problem is the code of a problem, or "".
func (a Answer) problem() string {
	if a.Header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	var p struct {
		Type   string
		Title  string
		Code   string
		Status int
	}
	if json.Unmarshal([]byte(a.Body), &p) != nil || p.Title == "" || p.Status != a.Status ||
		!strings.HasSuffix(p.Type, "#"+p.Code) {
		return "not a problem as RFC 9457 writes it: " + a.Body
	}
	return p.Code
}

// An Option changes a request.
type Option func(*http.Request)

// Key sets the idempotency key.
func Key(k string) Option { return Header("Idempotency-Key", k) }

// Header adds a header.
func Header(name, value string) Option {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

// Send sends a request.
func (rg *Rig) Send(method, path, body string, options ...Option) Answer {
	rg.t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, rg.Server.URL+path, strings.NewReader(body))
	if err != nil {
		rg.t.Fatal(err)
	}
	for _, o := range options {
		o(r)
	}
	return Do(rg.Client, r)
}

// Do sends a request, and reads the response.
func Do(client *http.Client, r *http.Request) Answer {
	resp, err := client.Do(r)
	if err != nil {
		return Answer{Err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, string(data), resp.Trailer, err}
}

// Pay sends a payment under a key.
func (rg *Rig) Pay(k string, options ...Option) Answer {
	rg.t.Helper()
	return rg.Send(http.MethodPost, Route, `{"amount":100}`, append(options, Key(k))...)
}
