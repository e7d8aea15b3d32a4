package idempotencykey_test

import (
	"bufio"
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
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestSecurity_RequestsThatAPrefixTellsApartNeverGetTheResponseOfEachOther(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	m := newMiddleware(t, idempotencykey.Config{})
	api := func(name string) http.Handler { // one for all prefixes
		mux := http.NewServeMux()
		mux.Handle("POST "+keytest.Route, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			l.Add("")
			io.WriteString(w, name)
		})))
		return mux
	}
	mux := http.NewServeMux()
	mux.Handle("/live/", http.StripPrefix("/live", api("live")))
	mux.Handle("/test/", http.StripPrefix("/test", api("test")))
	rg := keytest.ServeHandler(t, mux)
	keytest.Want(t, rg.Send("POST", "/test"+keytest.Route, "{}", keytest.Key("k")), 200, false)
	keytest.Want(t, rg.Send("POST", "/test"+keytest.Route, "{}", keytest.Key("k")), 200, true)
	keytest.WantProblem(t, rg.Send("POST", "/live"+keytest.Route, "{}", keytest.Key("k")),
		422, idempotencykey.CodeReused)
	keytest.WantRuns(t, l, 1)
}

func TestSecurity_RepeatThroughAProxyThatSendsTheWholeURLIsTheSameRequest(t *testing.T) {
	t.Parallel()
	rg, l := shop(t)
	keytest.Want(t, rg.Pay("k"), 201, false)
	conn, err := net.Dial("tcp", rg.Server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn,
		"POST http://shop"+keytest.Route+" HTTP/1.1\r\nHost: shop\r\nIdempotency-Key: k\r\n"+
			"Content-Length: 14\r\n\r\n"+`{"amount":100}`)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 201 || resp.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("answered %d, %v", resp.StatusCode, resp.Header)
	}
	keytest.WantRuns(t, l, 1)
}

// TestSecurity_ConnectionsThatOnlyAnnounceABodyHoldLittleMemory opens connections that say how much they will send, and
// send nothing.
func TestSecurity_ConnectionsThatOnlyAnnounceABodyHoldLittleMemory(t *testing.T) { // not parallel: it measures the heap
	const clients, announced = 200, 1 << 20
	waiting := make(chan struct{}, clients)
	m := newMiddleware(t, idempotencykey.Config{})
	rg := keytest.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = &announcing{ReadCloser: r.Body, waiting: waiting}
		m.Wrap(http.NotFoundHandler()).ServeHTTP(w, r)
	}))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range clients {
		conn, err := net.Dial("tcp", rg.Server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n",
			keytest.Route, announced)
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
		m := newMiddleware(t, idempotencykey.Config{
			MaxRequestBody: limit, Route: func(*http.Request) string { return keytest.Route },
		})
		r := httptest.NewRequest(http.MethodPost, keytest.Route, strings.NewReader("x"))
		r.ContentLength = math.MaxInt64
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if want := map[bool]int{true: 200, false: 413}[limit == math.MaxInt64]; w.Code != want {
			t.Errorf("limit %d: answered %d, want %d", limit, w.Code, want)
		}
	}
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
	credentials := []keytest.Option{
		keytest.Header("Authorization", "Bearer hidden-request"), keytest.Header("Cookie", "session=hidden-request"),
		keytest.Header("X-Api-Key", "hidden-request"),
	}
	store := &keytest.Spy{Store: keytest.NewMemory(t)}
	rg := keytest.Serve(t, keytest.NewGuard(t, store, oncemill.Policy{}), idempotencykey.Config{}, handler)
	if a := rg.Pay("k", credentials...); a.Header.Get("Set-Cookie") == "" {
		t.Error("the client that made the run did not get its cookie")
	}
	if a := rg.Pay("k", credentials...); !a.Replayed() || a.Header.Get("Set-Cookie") != "" ||
		a.Header.Get("Location") != "/visible" {
		t.Errorf("replay: %v", a.Header)
	}
	if kept := strings.Join(store.Seen(), "\n"); strings.Contains(kept, "hidden") || !strings.Contains(kept, "/visible") {
		t.Errorf("the store got %s", kept)
	}
}
