package idempotencykey_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
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
	io.WriteString(conn,
		"POST http://shop"+route+" HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\n"+
			"Content-Length: 14\r\n\r\n"+`{"amount":100}`)
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
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n", route,
			announced)
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

func (s *spy) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *spy) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	s.note(r)
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

func (s *spy) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

func (s *spy) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	s.note(settlement)
	return dedupstore.SettleOne(ctx, s.Store, c, settlement)
}

func TestSecurity_CredentialsAreNotStored(t *testing.T) {
	t.Parallel()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{
			"Set-Cookie", "Authorization", "Www-Authenticate", "Authentication-Info", "Proxy-Authenticate",
			"X-Api-Key", "X-Csrf-Token",
		} {
			w.Header().Set(name, "hidden-response")
		}
		w.Header().Set("Location", "/visible")
		io.WriteString(w, "body")
	}
	credentials := []option{
		header("Authorization", "Bearer hidden-request"), header("Cookie", "session=hidden-request"),
		header("X-Api-Key", "hidden-request"),
	}
	store := &spy{Store: newMemory(t)}
	rg := serve(t, newGuard(t, store, oncemill.Policy{}), idempotencykey.Config{}, handler)
	if a := rg.pay("k", credentials...); a.header.Get("Set-Cookie") == "" {
		t.Error("the client that made the run did not get its cookie")
	}
	if a := rg.pay("k", credentials...); !a.replayed() || a.header.Get("Set-Cookie") != "" ||
		a.header.Get("Location") != "/visible" {
		t.Errorf("replay: %v", a.header)
	}
	if kept := store.all(); strings.Contains(kept, "hidden") || !strings.Contains(kept, "/visible") {
		t.Errorf("the store got %s", kept)
	}
}
