package http_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
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

// A replay takes one round trip to Redis: compare "replay" with "claim", that round trip alone.
func BenchmarkRedis(b *testing.B) {
	rdb := redistest.Start(b).Client()
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		b.Fatal(err)
	}
	h := handlerOver(b, store)
	h.ServeHTTP(&discard{header: http.Header{}}, request("stored"))
	b.Run("replay", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w := &discard{header: http.Header{}}
			h.ServeHTTP(w, request("stored"))
			if w.header.Get("Idempotent-Replayed") != "true" {
				b.Fatal(w.status)
			}
		}
	})
	b.Run("claim", func(b *testing.B) {
		r := dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: "http", Handler: "POST " + route, ID: "stored"},
			Owner: "0123456789abcdef",
			Lease: 30 * time.Second, Retention: 24 * time.Hour, MaxAttempts: 10,
		}
		b.ReportAllocs()
		for b.Loop() {
			if answer, err := dedupstore.ClaimOne(b.Context(), store, r); err != nil || answer.Status != dedupstore.Done {
				b.Fatal(answer.Status, err)
			}
		}
	})
	b.Run("first request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.ServeHTTP(&discard{header: http.Header{}}, request("k"+strconv.FormatInt(fresh.Add(1), 10)))
		}
	})
}

// fresh numbers keys.
var fresh atomic.Int64
