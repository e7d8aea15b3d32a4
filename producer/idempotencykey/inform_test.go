package idempotencykey_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// A stuck listener gives connections that write nothing while they are stuck.
type stuckListener struct {
	net.Listener
	stuck sync.RWMutex
}

func (l *stuckListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &stuckConn{c, l}, err
}

type stuckConn struct {
	net.Conn
	from *stuckListener
}

func (c *stuckConn) Write(p []byte) (int, error) {
	c.from.stuck.RLock()
	defer c.from.stuck.RUnlock()
	return c.Conn.Write(p)
}

// The race detector decides: net/http reads the header of an informational response beside the handler when its client has gone.
func TestMiddleware_InformationalResponseOfAClientThatHasGoneOverHTTP2IsNotWrittenOver(t *testing.T) {
	t.Parallel()
	t.Run("bare", func(t *testing.T) {
		t.Parallel()
		informsOneThatHasGone(t, func(h http.Handler) http.Handler { return h })
	})
	t.Run("inside of compression", func(t *testing.T) {
		t.Parallel()
		informsOneThatHasGone(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(lengthless{w}, r) })
		})
	})
}

// A lengthless writer removes the length that something else will have, as gorilla's CompressHandler does.
type lengthless struct{ http.ResponseWriter }

func (w lengthless) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

func informsOneThatHasGone(t *testing.T, around func(http.Handler) http.Handler) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &stuckListener{Listener: inner}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	ended := make(chan struct{})
	keys := newMiddleware(t, newGuard(t, newMemory(t), oncemill.Policy{}), idempotencykey.Config{})
	mux := http.NewServeMux()
	mux.Handle("POST "+route, keys.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Begin") != "" {
			return
		}
		defer close(ended)
		l.stuck.Lock()
		defer l.stuck.Unlock()
		w.Header().Set("Link", strings.Repeat("</style.css>; rel=preload, ", 1000)) // more than a buffer
		go leave()                                                                  // nothing but time orders this and the write: a signal would hide the race
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Location", "/payments/1")
		w.WriteHeader(http.StatusCreated)
	})))
	var over http.Protocols
	over.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: around(mux), Protocols: &over}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{Protocols: &over}}
	request := func(ctx context.Context, k string) *http.Request {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+inner.Addr().String()+route, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		key(k)(r)
		return r
	}
	first := request(context.Background(), "first") // after it, nothing else is on its way on the connection
	header("Begin", "yes")(first)
	want(t, do(client, first), http.StatusOK, false)
	do(client, request(ctx, "k"))
	<-ended
	client.CloseIdleConnections()
	s.Close()
	<-served
}
