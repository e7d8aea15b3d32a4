package keytest

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

var (
	payload = strings.Repeat("x", 1024)
	target  = &url.URL{Path: Route}
)

// served is a context that can end, as those of servers can.
var served, _ = context.WithCancel(context.Background())

// Call calls a handler with a request of 1 KiB under a key, as cheaply as it can be called.
func Call(h http.Handler, k string) (status int, header http.Header) {
	r := &http.Request{
		Method: http.MethodPost, URL: target, Host: "localhost", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Idempotency-Key": {k}}, Body: io.NopCloser(strings.NewReader(payload)),
		ContentLength: int64(len(payload)),
	}
	w := &discard{header: http.Header{}}
	h.ServeHTTP(w, r.WithContext(served))
	return w.status, w.header
}

// discard is a ResponseWriter that keeps nothing but the header.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// Respond is a handler that only responds.
func Respond(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	w.Write([]byte(`{"id":"pay_1","amount":100,"currency":"EUR"}`))
}

// HandlerOver is Respond behind a middleware over a store.
func HandlerOver(b *testing.B, store dedupstore.Store) http.Handler {
	b.Helper()
	mux := http.NewServeMux()
	m := NewMiddleware(b, NewGuard(b, store, oncemill.Policy{}), idempotencykey.Config{})
	mux.Handle(Route, m.Wrap(http.HandlerFunc(Respond)))
	return mux
}
