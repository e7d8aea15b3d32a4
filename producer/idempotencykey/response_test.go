package idempotencykey_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestMiddleware_ReplayIsTheSameByteForByte(t *testing.T) {
	t.Parallel()
	blob := make([]byte, 40<<10)
	rand.Read(blob)
	for name, handler := range map[string]http.HandlerFunc{
		"nothing said": func(http.ResponseWriter, *http.Request) {},
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
		"sniffed type": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>"); io.WriteString(w, "x") },
		"all bytes":    func(w http.ResponseWriter, _ *http.Request) { w.Write(blob) },
		"in pieces, flushed": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(blob[:10])
			w.(http.Flusher).Flush()
			w.Write(blob[10:100])
		},
		"flushed, with an invalid length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "-1") // as http.Response has it of an unknown one; the server leaves it out
			w.Write(blob[:10])
			w.(http.Flusher).Flush()
		},
		"flushed before the body": func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			io.WriteString(w, "<html>")
		},
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<html><script>alert(1)</script></html>")
		},
		"type that must not be guessed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			io.WriteString(w, "<html>")
		},
		"empty line in front": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "\n\nx\n") },
		"encoded": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			w.Header().Add("Link", "<a>; rel=x")
			w.Header().Add("Link", "<b>; rel=y")
			w.WriteHeader(418)
			w.Write(blob[:64])
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rg := serveMemory(t, idempotencykey.Config{}, handler)
			first, again := rg.pay("k"), rg.pay("k")
			if first.err != nil || again.err != nil {
				t.Fatal(first.err, again.err)
			}
			if again.status != first.status || again.body != first.body || !again.replayed() || first.replayed() {
				t.Errorf("%d and %d bytes, then %d and %d bytes", first.status, len(first.body), again.status, len(again.body))
			}
			for _, h := range append(idempotencykey.StoredHeaders(), "X-Content-Type-Options") {
				if a, b := strings.Join(first.header.Values(h), "|"), strings.Join(again.header.Values(h), "|"); a != b {
					t.Errorf("%s is %q, then %q", h, a, b)
				}
			}
		})
	}
}

func TestMiddleware_HandlerReadsTheBodyFromItsBeginning(t *testing.T) {
	t.Parallel()
	rg := serveMemory(t, idempotencykey.Config{
		Account: func(r *http.Request) (string, error) { // reads what belongs to the handler
			r.ParseForm()
			return r.PostForm.Get("account"), nil
		},
	}, func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		again, _ := r.GetBody()
		more, _ := io.ReadAll(again)
		if err != nil || !bytes.Equal(data, more) || r.ContentLength != int64(len(data)) {
			w.WriteHeader(500)
		}
		w.Write(data)
	})
	form := header("Content-Type", "application/x-www-form-urlencoded")
	if a := rg.send("POST", route, "account=a&amount=1", key("k"), form); a.status != 200 || a.body != "account=a&amount=1" {
		t.Errorf("%d %q", a.status, a.body)
	}
	wantProblem(t, rg.send("POST", route, "amount=1", key("k"), form), 403, idempotencykey.CodeNoAccount)
}

func TestMiddleware_ResponseOverTheLimitIsSentOnceAndRepeatsGetToKnowThatTheWorkIsDone(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	rg := serveMemory(t, idempotencykey.Config{MaxResponseBody: 100}, func(w http.ResponseWriter, _ *http.Request) {
		l.add("")
		w.WriteHeader(201)
		for range 50 {
			io.WriteString(w, "0123456789")
		}
	})
	first := rg.pay("k")
	want(t, first, 201, false)
	if len(first.body) != 500 {
		t.Errorf("%d bytes arrived, want all 500", len(first.body))
	}
	again := rg.pay("k")
	wantProblem(t, again, 410, idempotencykey.CodeNotKept)
	if !again.replayed() || !strings.Contains(again.body, `"original_status":201`) {
		t.Errorf("%v %s", again.header, again.body)
	}
	wantRuns(t, l, 1)
}

func TestMiddleware_HeadersThatDoNotFitMakeAResponseTooLarge(t *testing.T) {
	t.Parallel()
	rg := serve(t, newGuard(t, newMemory(t), oncemill.Policy{MaxResultBytes: 4096}), idempotencykey.Config{MaxResponseBody: 3000},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", strings.Repeat("x", 2000))
			w.Write(make([]byte, 3000))
		})
	if a := rg.pay("k"); a.status != 200 || len(a.body) != 3000 || len(a.header.Get("Location")) != 2000 {
		t.Errorf("%d with %d bytes", a.status, len(a.body))
	}
	wantProblem(t, rg.pay("k"), 410, idempotencykey.CodeNotKept)
}

func TestMiddleware_HijackedConnectionIsNotKept(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		l.add("")
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
			t.Errorf("a write after it returned %v", err)
		}
	})
	if a := rg.pay("k"); a.status != 200 || a.body != "hi" {
		t.Errorf("%d %q %v", a.status, a.body, a.err)
	}
	until(t, "the run is over", func() bool { return rg.pay("k").status != 409 })
	wantProblem(t, rg.pay("k"), 410, idempotencykey.CodeNotKept)
	wantRuns(t, l, 1)
}

// informational adds up the informational responses to a request.
func informational(sum *atomic.Int32) option {
	return func(r *http.Request) {
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { sum.Add(int32(code)); return nil },
		}))
	}
}

func TestMiddleware_HeaderThatWasWrittenBeforeAConnectionIsHijackedLeavesBeforeIt(t *testing.T) {
	t.Parallel()
	takes := func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Date"] = nil // it may differ
		w.WriteHeader(http.StatusAccepted)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, "taken over")
		conn.Close()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/without", takes)
	mux.Handle("/with", newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{}).Wrap(http.HandlerFunc(takes)))
	rg := serveHandler(t, mux)
	var got [2]string
	for i, path := range []string{"/without", "/with"} {
		conn, err := net.Dial("tcp", rg.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
		data, _ := io.ReadAll(conn)
		conn.Close()
		got[i] = string(data)
	}
	if got[1] != got[0] || !strings.HasPrefix(got[1], "HTTP/1.1 202 ") || !strings.HasSuffix(got[1], "\r\n\r\ntaken over") {
		t.Errorf("got %q, and %q without a key", got[1], got[0])
	}
	until(t, "the run is over", func() bool { return rg.send("POST", "/with", "", key("k")).status != 409 })
	wantProblem(t, rg.send("POST", "/with", "", key("k")), http.StatusGone, idempotencykey.CodeNotKept)
}

func TestMiddleware_InformationalResponsesAndTrailersReachTheClientAndAreNotKept(t *testing.T) {
	t.Parallel()
	rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("Trailer", "Checksum")
		io.WriteString(w, "body")
		w.Header().Set("Checksum", "abc")
		w.Header().Set(http.TrailerPrefix+"More", "def")
		w.Header().Set("Location", "too late")
	})
	var hints atomic.Int32
	trace := informational(&hints)
	a := rg.pay("k", trace)
	if a.status != 200 || a.body != "body" || a.trailer.Get("Checksum") != "abc" || a.trailer.Get("More") != "def" || hints.Load() != 103 {
		t.Errorf("%d %q, trailer %v, hints %d", a.status, a.body, a.trailer, hints.Load())
	}
	if a.header.Get("Link") != "" || a.header.Get("Location") != "" {
		t.Errorf("header %v", a.header)
	}
	a = rg.pay("k", trace)
	want(t, a, 200, true)
	if a.body != "body" || len(a.trailer) > 0 || hints.Load() != 103 {
		t.Errorf("replay: %q, trailer %v, hints %d", a.body, a.trailer, hints.Load())
	}
}

func TestMiddleware_HeadersOfOuterMiddlewaresStayAndCanBeRemoved(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{Route: func(*http.Request) string { return "r" }})
	inner := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("Removed") }))
	rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", r.Header.Get("N"))
		w.Header().Set("Removed", "x")
		inner.ServeHTTP(w, r)
	}))
	for _, n := range []string{"1", "2"} {
		if a := rg.pay("k", header("N", n)); a.header.Get("X-Request-Id") != n || n == "1" && a.header.Get("Removed") != "" {
			t.Errorf("request %s: %v", n, a.header)
		}
	}
}
