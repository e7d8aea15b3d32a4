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
	"github.com/oncemill/oncemill/internal/keytest"
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
			first, again := rg.Pay("k"), rg.Pay("k")
			if first.Err != nil || again.Err != nil {
				t.Fatal(first.Err, again.Err)
			}
			if again.Status != first.Status || again.Body != first.Body || !again.Replayed() || first.Replayed() {
				t.Errorf("%d and %d bytes, then %d and %d bytes", first.Status, len(first.Body), again.Status,
					len(again.Body))
			}
			for _, h := range idempotencykey.StoredHeaders {
				if a, b := strings.Join(first.Header.Values(h), "|"), strings.Join(again.Header.Values(h),
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
	form := keytest.Header("Content-Type", "application/x-www-form-urlencoded")
	if a := rg.Send("POST", keytest.Route, "account=a&amount=1", keytest.Key("k"), form); a.Status != 200 ||
		a.Body != "account=a&amount=1" {
		t.Errorf("%d %q", a.Status, a.Body)
	}
	a := rg.Send("POST", keytest.Route, "amount=1", keytest.Key("k"), form)
	keytest.WantProblem(t, a, 403, idempotencykey.CodeNoAccount)
}

func TestMiddleware_ResponseOverTheLimitIsSentOnceAndRepeatsGetToKnowThatTheWorkIsDone(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := keytest.Serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{MaxResultBytes: 1024}),
		idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
			l.Add("")
			w.WriteHeader(201)
			for range 500 {
				io.WriteString(w, "0123456789")
			}
		})
	first := rg.Pay("k")
	keytest.Want(t, first, 201, false)
	if len(first.Body) != 5000 {
		t.Errorf("%d bytes arrived, want all 5000", len(first.Body))
	}
	again := rg.Pay("k")
	keytest.WantProblem(t, again, 410, idempotencykey.CodeNotKept)
	if !again.Replayed() || !strings.Contains(again.Body, `"original_status":201`) {
		t.Errorf("%v %s", again.Header, again.Body)
	}
	keytest.WantRuns(t, l, 1)
}

func TestMiddleware_HeadersThatDoNotFitMakeAResponseTooLarge(t *testing.T) {
	t.Parallel()
	rg := keytest.Serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{MaxResultBytes: 4096}),
		idempotencykey.Config{},
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", strings.Repeat("x", 2000))
			w.Write(make([]byte, 3000))
		})
	if a := rg.Pay("k"); a.Status != 200 || len(a.Body) != 3000 || len(a.Header.Get("Location")) != 2000 {
		t.Errorf("%d with %d bytes", a.Status, len(a.Body))
	}
	keytest.WantProblem(t, rg.Pay("k"), 410, idempotencykey.CodeNotKept)
}

// informational adds up the informational responses to a request.
func informational(sum *atomic.Int32) keytest.Option {
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
		a := rg.Pay("k", informational(&hints))
		keytest.Want(t, a, 200, replayed)
		if a.Body != "body" || len(a.Trailer) > 0 || hints.Load() != 0 {
			t.Errorf("replayed %v: %q, trailer %v, hints %d", replayed, a.Body, a.Trailer, hints.Load())
		}
		if a.Header.Get("Link") != "" || a.Header.Get("Location") != "" {
			t.Errorf("header %v", a.Header)
		}
	}
}

func TestMiddleware_HeadersOfOuterMiddlewaresStayAndCanBeRemoved(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, idempotencykey.Config{Route: func(*http.Request) string { return "r" }})
	inner := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("Removed") }))
	rg := keytest.ServeHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", r.Header.Get("N"))
		w.Header().Set("Removed", "x")
		inner.ServeHTTP(w, r)
	}))
	for _, n := range []string{"1", "2"} {
		if a := rg.Pay("k", keytest.Header("N", n)); a.Header.Get("X-Request-Id") != n || n == "1" &&
			a.Header.Get("Removed") != "" {
			t.Errorf("request %s: %v", n, a.Header)
		}
	}
}

func TestMiddleware_HeadersThatCannotBeReadAgainAreNotStored(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		l.Add("")
		w.Header()["Link"] = []string{"</a>;title=\x01", "</b>;title=a\tb", "</c>;title=\x7f", "</d>;title=é"}
		w.Header().Set("Location", "/orders/7\x00")
		io.WriteString(w, "paid")
	})
	rg.Pay("k") // a client does not read it either
	again := rg.Pay("k")
	keytest.Want(t, again, 200, true)
	if links := again.Header["Link"]; len(links) != 2 || again.Header.Get("Location") != "" || again.Body != "paid" {
		t.Errorf("%q %q", again.Header, again.Body)
	}
	keytest.WantRuns(t, l, 1)
}
