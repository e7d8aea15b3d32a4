package idempotencykey_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestSecurity_AnAccountNeverGetsTheResponseOfAnother(t *testing.T) {
	t.Parallel()
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t)
			rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{
				Account: func(r *http.Request) (string, error) {
					if r.Header.Get("Account") == "nobody" {
						return "", errors.New("unknown")
					}
					return r.Header.Get("Account"), nil
				},
			}, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "secret of "+r.Header.Get("Account")) })
			long := strings.Repeat("a", 200)
			for _, account := range []string{"a", "b", "A", "a ", "a:POST", long, long + "b", "default", "http"} {
				account = strings.TrimSpace(account) + strings.Repeat("!", len(account)-len(strings.TrimSpace(account)))
				for _, replayed := range []bool{false, true} {
					a := rg.pay("k", header("Account", account))
					want(t, a, 200, replayed)
					if a.body != "secret of "+account {
						t.Errorf("account %q got %q", account, a.body)
					}
				}
			}
			for _, account := range []string{"", "nobody"} {
				wantProblem(t, rg.pay("k", header("Account", account)), 403, idempotencykey.CodeNoAccount)
			}
		})
	}
}

func TestSecurity_RequestsThatAPrefixTellsApartNeverGetTheResponseOfEachOther(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{})
	api := func(name string) http.Handler { // one for all prefixes
		mux := http.NewServeMux()
		mux.Handle("POST "+route, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			l.add("")
			io.WriteString(w, name)
		})))
		return mux
	}
	mux := http.NewServeMux()
	mux.Handle("/live/", http.StripPrefix("/live", api("live")))
	mux.Handle("/test/", http.StripPrefix("/test", api("test")))
	rg := serveHandler(t, mux)
	want(t, rg.send("POST", "/test"+route, "{}", key("k")), 200, false)
	want(t, rg.send("POST", "/test"+route, "{}", key("k")), 200, true)
	wantProblem(t, rg.send("POST", "/live"+route, "{}", key("k")), 422, idempotencykey.CodeReused)
	wantRuns(t, l, 1)
}

func TestSecurity_RepeatThroughAProxyThatSendsTheWholeURLIsTheSameRequest(t *testing.T) {
	t.Parallel()
	rg, l := shop(t)
	want(t, rg.pay("k"), 201, false)
	conn, err := net.Dial("tcp", rg.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST http://shop"+route+" HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\nContent-Length: 14\r\n\r\n"+`{"amount":100}`)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 201 || resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("answered %d, %v", resp.StatusCode, resp.Header)
	}
	wantRuns(t, l, 1)
}

// TestSecurity_ConnectionsThatOnlyAnnounceABodyHoldLittleMemory opens connections that say how much they will send, and
// send nothing.
func TestSecurity_ConnectionsThatOnlyAnnounceABodyHoldLittleMemory(t *testing.T) { // not parallel: it measures the heap
	const clients, announced = 200, 1 << 20
	waiting := make(chan struct{}, clients)
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{})
	rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &announcing{ReadCloser: r.Body, waiting: waiting}
		m.Wrap(http.NotFoundHandler()).ServeHTTP(w, r)
	}))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range clients {
		conn, err := net.Dial("tcp", rg.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n", route, announced)
	}
	for range clients {
		<-waiting
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > clients*announced/4 {
		t.Errorf("the heap grew by %d MiB for %d connections that sent no body", grown>>20, clients)
	}
}

// announcing is a body that says when it is read for the first time.
type announcing struct {
	io.ReadCloser
	waiting chan<- struct{}
	once    sync.Once
}

func (a *announcing) Read(p []byte) (int, error) {
	a.once.Do(func() { a.waiting <- struct{}{} })
	return a.ReadCloser.Read(p)
}

func TestSecurity_AnnouncedLengthIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1 << 20, math.MaxInt64} {
		m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{
			MaxRequestBody: limit, Route: func(*http.Request) string { return route },
		})
		r := httptest.NewRequest(http.MethodPost, route, strings.NewReader("x"))
		r.ContentLength = math.MaxInt64
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if want := map[bool]int{true: 200, false: 413}[limit == math.MaxInt64]; w.Code != want {
			t.Errorf("limit %d: answered %d, want %d", limit, w.Code, want)
		}
	}
}

// spy remembers everything that is given to a store.
type spy struct {
	dedupstore.Store
	mu   sync.Mutex
	seen []string
}

func (s *spy) note(v any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf("%+v", v))
	if f, ok := v.(dedupstore.Finish); ok {
		s.seen = append(s.seen, string(f.Outcome.Result))
	}
}

func (s *spy) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.seen, "\n")
}

func (s *spy) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	s.note(r)
	return s.Store.Claim(ctx, r)
}

func (s *spy) Settle(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	s.note(settlement)
	return s.Store.Settle(ctx, c, settlement)
}

func TestSecurity_CredentialsAreNotStoredUnlessTheyAreChosen(t *testing.T) {
	t.Parallel()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{
			"Set-Cookie", "Authorization", "Www-Authenticate", "Authentication-Info", "Proxy-Authenticate", "X-Api-Key", "X-Csrf-Token",
		} {
			w.Header().Set(name, "hidden-response")
		}
		w.Header().Set("Location", "/visible")
		io.WriteString(w, "body")
	}
	credentials := []option{
		header("Authorization", "Bearer hidden-request"), header("Cookie", "session=hidden-request"), header("X-Api-Key", "hidden-request"),
	}
	store := &spy{Store: newMemory(t)}
	rg := serve(t, newGuard(t, store, oncemill.Policy{}), idempotencykey.Config{FingerprintHeaders: []string{"Authorization"}}, handler)
	if a := rg.pay("k", credentials...); a.header.Get("Set-Cookie") == "" {
		t.Error("the client that made the run did not get its cookie")
	}
	if a := rg.pay("k", credentials...); !a.replayed() || a.header.Get("Set-Cookie") != "" || a.header.Get("Location") != "/visible" {
		t.Errorf("replay: %v", a.header)
	}
	if kept := store.all(); strings.Contains(kept, "hidden") || !strings.Contains(kept, "/visible") {
		t.Errorf("the store got %s", kept)
	}

	store = &spy{Store: newMemory(t)}
	rg = serve(t, newGuard(t, store, oncemill.Policy{}), idempotencykey.Config{StoreHeaders: []string{"set-cookie"}}, handler)
	rg.pay("k")
	if a := rg.pay("k"); a.header.Get("Set-Cookie") != "hidden-response" || a.header.Get("Location") != "" {
		t.Errorf("replay with a chosen cookie: %v", a.header)
	}
}

func TestSecurity_TheRecordInRedisHasNoCredentials(t *testing.T) {
	t.Parallel()
	server := testserver.Redis(t)
	rdb := server.Client()
	b := openFor(t, onRedis, server.Addr)
	rg := serve(t, newGuard(t, b.store, oncemill.Policy{}), idempotencykey.Config{Group: "records"}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "session=hidden")
		w.Header().Set("Location", "/visible")
	})
	want(t, rg.pay("k", header("Authorization", "hidden")), 200, false)
	record, err := rdb.Get(t.Context(), "oncemill:default:records:POST%20/payments:k").Result()
	if err != nil || strings.Contains(record, "hidden") || !strings.Contains(record, "/visible") {
		t.Errorf("record %q, error %v", record, err)
	}
}

func TestSecurity_NothingOfABodyIsInLogsAndSpans(t *testing.T) { // not parallel: the tracer is the process's
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(before)

	var log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store := &spy{Store: newMemory(t)}
	g := newGuard(t, store, oncemill.Policy{MaxAttempts: 2, Logger: logger})
	m := newMiddleware(t, g, idempotencykey.Config{MaxRequestBody: 1000, MaxResponseBody: 1000})
	mux := http.NewServeMux()
	mux.Handle(route, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if strings.Contains(r.URL.RawQuery, "panic") {
			panic(string(data))
		}
		w.Header().Set("Location", "/hidden")
		w.WriteHeader(500)
		w.Write(bytes.Repeat(data, 1+len(r.URL.RawQuery)*200))
	})))
	rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := provider.Tracer("test").Start(r.Context(), "request")
		defer func() {
			panicked := recover() // for spans say what they see of a panic
			span.End()
			if panicked != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		mux.ServeHTTP(w, r.WithContext(ctx))
	}))
	for _, query := range []string{"", "?large", "?panic"} {
		for _, body := range []string{"hidden 1", "hidden 1", "hidden 2", strings.Repeat("hidden", 500)} {
			rg.send("POST", route+query, body, key("k"+query))
		}
	}
	rg.send("POST", route, "hidden", key("bad hidden"))
	if strings.Contains(log.String(), "hidden") || !strings.Contains(log.String(), "panicked") {
		t.Errorf("logged: %s", log.String())
	}
	spans := fmt.Sprintf("%+v", exporter.GetSpans())
	if strings.Contains(spans, "hidden") || !strings.Contains(spans, "oncemill.outcome") {
		t.Errorf("spans: %.2000s", spans)
	}
	for _, s := range store.seen { // reasons are for operators' eyes
		if strings.HasPrefix(s, "{Outcome:{") && strings.Contains(s, "hidden") {
			t.Errorf("settlement: %s", s)
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
