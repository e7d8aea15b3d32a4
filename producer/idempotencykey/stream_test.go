package idempotencykey_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// streaming is a handler that flushes, goes on when its client has gone, and stops, as io.Copy does, at the first error.
func streaming(t *testing.T, m *idempotencykey.Middleware, l *ledger, begun chan struct{}, rest func(r *http.Request, write func() bool)) *rig {
	t.Helper()
	return serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		gone := r.Context().Done() // of the request itself
		m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l.add("")
			out := http.NewResponseController(w)
			write := func() bool {
				_, err := io.WriteString(w, strings.Repeat("x", 1000))
				return err == nil && out.Flush() == nil
			}
			write()
			close(begun)
			<-gone
			rest(r, write)
		})).ServeHTTP(w, r)
	}))
}

func TestMiddleware_FlushedResponseOfAClientThatHasGoneIsKeptWhole(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{Route: func(*http.Request) string { return route }})
	l, begun := &ledger{}, make(chan struct{})
	rg := streaming(t, m, l, begun, func(_ *http.Request, write func() bool) {
		for range 29 {
			if !write() {
				return
			}
		}
	})
	leave(t, rg, begun)
	a := retried(t, rg)
	want(t, a, 200, true)
	if len(a.body) != 30_000 {
		t.Errorf("%d bytes are kept, want 30000", len(a.body))
	}
	wantRuns(t, l, 1)
}

func TestMiddleware_FlushedResponseThatGaveUpIsNotKeptAsWhole(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{
		Route: func(*http.Request) string { return route }, Linger: time.Millisecond,
	})
	l, begun := &ledger{}, make(chan struct{})
	rg := streaming(t, m, l, begun, func(r *http.Request, _ func() bool) { <-r.Context().Done() })
	leave(t, rg, begun)
	wantProblem(t, retried(t, rg), 410, idempotencykey.CodeNotKept)
	wantRuns(t, l, 1)
}

// A handler that heeds nothing but the errors of its writes must end some time: as long as it runs, its key is in progress.
func TestMiddleware_FlushedResponseOfAClientThatHasGoneHasAnEnd(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{
		Route: func(*http.Request) string { return route }, Linger: time.Millisecond,
	})
	l, begun := &ledger{}, make(chan struct{})
	rg := streaming(t, m, l, begun, func(r *http.Request, write func() bool) {
		<-r.Context().Done()
		for range 40 { // less than is kept
			if !write() {
				return
			}
		}
		t.Error("its writes have no error after the end of its context")
	})
	leave(t, rg, begun)
	wantProblem(t, retried(t, rg), 410, idempotencykey.CodeNotKept)
	wantRuns(t, l, 1)
}

func TestMiddleware_FlushedResponseThatHasAllItAnnouncedIsKept(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{Linger: time.Millisecond})
	l, begun := &ledger{}, make(chan struct{})
	mux := http.NewServeMux()
	mux.Handle("POST "+route, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.add("")
		w.Header().Set("Content-Length", "4")
		io.WriteString(w, "pa")
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done()
		io.WriteString(w, "id") // whose error says nothing of what is kept
	})))
	rg := serveHandler(t, mux)
	leave(t, rg, begun)
	a := retried(t, rg)
	want(t, a, 200, true)
	if a.body != "paid" {
		t.Errorf("%q is kept", a.body)
	}
	wantRuns(t, l, 1)
}
