package idempotencykey_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// compress is a middleware as many write it: it names the encoding before the handler runs.
func compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(compressing{w, z}, r)
	})
}

type compressing struct {
	http.ResponseWriter
	to io.Writer
}

func (c compressing) Write(p []byte) (int, error) { return c.to.Write(p) }

func TestMiddleware_EachResponseHasTheEncodingOfItsOwnRequest(t *testing.T) {
	t.Parallel()
	plain := "paid " + strings.Repeat("and paid ", 300)
	for name, encodings := range map[string][]string{"compressed first": {"gzip", "identity", "gzip"},
		"plain first": {"identity", "gzip", "identity"}} {
		for _, typed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, typed %v", name, typed), func(t *testing.T) {
				t.Parallel()
				keys := newMiddleware(t, idempotencykey.Config{})
				mux := http.NewServeMux()
				mux.Handle(keytest.Route, keys.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if typed {
						w.Header().Set("Content-Type", "text/plain; charset=utf-8")
					}
					io.WriteString(w, plain)
				})))
				rg := keytest.ServeHandler(t, compress(mux))
				for i, encoding := range encodings {
					a := rg.Pay("k", keytest.Header("Accept-Encoding", encoding))
					keytest.Want(t, a, http.StatusOK, i > 0)
					body := a.Body
					if encoding == "gzip" {
						body = unzipped(t, a)
					} else if got := a.Header.Get("Content-Encoding"); got != "" {
						t.Errorf("response %d to a client that wants none has Content-Encoding %q", i+1, got)
					}
					if body != plain || a.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
						t.Errorf("response %d, %s: %q %.40q", i+1, encoding, a.Header.Get("Content-Type"), body)
					}
				}
			})
		}
	}
}

// unzipped is the body of a response that must be compressed, whole.
func unzipped(t *testing.T, a keytest.Answer) string {
	t.Helper()
	if a.Err != nil || a.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("Content-Encoding %q, %v", a.Header.Get("Content-Encoding"), a.Err)
	}
	z, err := gzip.NewReader(strings.NewReader(a.Body))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestMiddleware_BodyThatTheHandlerHasEncodedIsReplayedAsItIs(t *testing.T) {
	t.Parallel()
	rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, "paid")
		z.Close()
	})
	for i := range 2 {
		a := rg.Pay("k")
		keytest.Want(t, a, http.StatusOK, i > 0)
		if body := unzipped(t, a); body != "paid" {
			t.Errorf("response %d: %q", i+1, body)
		}
	}
}
