package idempotencykey_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

var (
	payload = strings.Repeat("x", 1024)
	target  = &url.URL{Path: route}
)

// served is a context that can end, as those of servers can.
var served, _ = context.WithCancel(context.Background())

// request makes a request of 1 KiB, as cheaply as it can be made.
func request(k string) *http.Request {
	r := &http.Request{
		Method: http.MethodPost, URL: target, Host: "localhost", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Idempotency-Key": {k}}, Body: io.NopCloser(strings.NewReader(payload)),
		ContentLength: int64(len(payload)),
	}
	return r.WithContext(served)
}

// discard is a ResponseWriter that keeps nothing but the header.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

func respond(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	w.Write([]byte(`{"id":"pay_1","amount":100,"currency":"EUR"}`))
}

func handlerOver(b *testing.B, store dedupstore.Store) http.Handler {
	b.Helper()
	mux := http.NewServeMux()
	m := newMiddleware(b, newGuard(b, store, oncemill.Policy{}), idempotencykey.Config{})
	mux.Handle(route, m.Wrap(http.HandlerFunc(respond)))
	return mux
}

// What requests cost beside their round trips: "first" and "replay" less "bare", over a store that answers at once.
func BenchmarkOwn(b *testing.B) {
	b.Run("first", func(b *testing.B) {
		store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: 1 << 34})
		if err != nil {
			b.Fatal(err)
		}
		h := handlerOver(b, store)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			w := &discard{header: http.Header{}}
			if h.ServeHTTP(w, request("k"+strconv.Itoa(i))); w.status != http.StatusCreated {
				b.Fatal(w.status)
			}
		}
	})
	b.Run("replay", func(b *testing.B) {
		h := handlerOver(b, newMemory(b))
		b.ReportAllocs()
		for b.Loop() {
			h.ServeHTTP(&discard{header: http.Header{}}, request("k"))
		}
	})
	b.Run("bare", func(b *testing.B) {
		mux := http.NewServeMux()
		mux.HandleFunc(route, respond)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			mux.ServeHTTP(&discard{header: http.Header{}}, request("k"+strconv.Itoa(i)))
		}
	})
}
