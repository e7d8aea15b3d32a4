package idempotencykey_test

import (
	"crypto/rand"
	"io"
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
		"sniffed type": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "<html>")
			io.WriteString(w,
				"x")
		},
		"all bytes": func(w http.ResponseWriter, _ *http.Request) { w.Write(blob) },
		"in pieces": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(blob[:10])
			w.Write(blob[10:100])
		},
		"an invalid length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "-1") // as http.Response has it of an unknown one
			w.Write(blob[:10])
		},
		"more than announced": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			w.Write(blob[:10])
		},
		"a header that is not ASCII": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Disposition", "attachment; filename=\"Zürich.pdf\"")
			w.Header().Set("Location", "/\xff")
			w.Write(blob[:10])
		},
		"a header of several lines": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/a\r\nSet-Cookie: x")
			w.Write(blob[:10])
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
				t.Errorf("%d and %d bytes, then %d and %d bytes", first.status, len(first.body), again.status,
					len(again.body))
			}
			for _, h := range idempotencykey.StoredHeaders {
				if a, b := strings.Join(first.header.Values(h), "|"), strings.Join(again.header.Values(h),
					"|"); a != b {
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
		if err != nil || r.ContentLength != int64(len(data)) {
			w.WriteHeader(500)
		}
		w.Write(data)
	})
	form := header("Content-Type", "application/x-www-form-urlencoded")
	if a := rg.send("POST", route, "account=a&amount=1", key("k"), form); a.status != 200 ||
		a.body != "account=a&amount=1" {
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
	rg := serve(t, newGuard(t, newMemory(t), oncemill.Policy{MaxResultBytes: 4096}),
		idempotencykey.Config{MaxResponseBody: 3000},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", strings.Repeat("x", 2000))
			w.Write(make([]byte, 3000))
		})
	if a := rg.pay("k"); a.status != 200 || len(a.body) != 3000 || len(a.header.Get("Location")) != 2000 {
		t.Errorf("%d with %d bytes", a.status, len(a.body))
	}
	wantProblem(t, rg.pay("k"), 410, idempotencykey.CodeNotKept)
}

// informational adds up the informational responses to a request.
func informational(sum *atomic.Int32) option {
	return func(r *http.Request) {
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { sum.Add(int32(code)); return nil },
		}))
	}
}

func TestMiddleware_InformationalResponsesAndTrailersAreDropped(t *testing.T) {
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
	for _, replayed := range []bool{false, true} {
		a := rg.pay("k", informational(&hints))
		want(t, a, 200, replayed)
		if a.body != "body" || len(a.trailer) > 0 || hints.Load() != 0 {
			t.Errorf("replayed %v: %q, trailer %v, hints %d", replayed, a.body, a.trailer, hints.Load())
		}
		if a.header.Get("Link") != "" || a.header.Get("Location") != "" {
			t.Errorf("header %v", a.header)
		}
	}
}

func TestMiddleware_HeadersOfOuterMiddlewaresStayAndCanBeRemoved(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}),
		idempotencykey.Config{Route: func(*http.Request) string { return "r" }})
	inner := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("Removed") }))
	rg := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", r.Header.Get("N"))
		w.Header().Set("Removed", "x")
		inner.ServeHTTP(w, r)
	}))
	for _, n := range []string{"1", "2"} {
		if a := rg.pay("k", header("N", n)); a.header.Get("X-Request-Id") != n || n == "1" &&
			a.header.Get("Removed") != "" {
			t.Errorf("request %s: %v", n, a.header)
		}
	}
}
