package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/examples/internal/postgres"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

// onDatabases runs a test on SQLite and on PostgreSQL.
func onDatabases(t *testing.T, test func(t *testing.T, open func() *database)) {
	closing := func(t *testing.T, db *shop.Database, err error) *database {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
		return &database{Database: db, topic: "orders"}
	}
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, func() *database {
			db, err := shop.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "shop.db"), table)
			return closing(t, db, err)
		})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		dsn := postgrestest.Shared(t).NewDatabase(t).DSN()
		test(t, func() *database {
			db, err := postgres.Open(t.Context(), dsn, "oncemill_test", table)
			return closing(t, db, err)
		})
	})
}

// until waits for a condition.
func until(t *testing.T, what string, met func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := shop.Poll(ctx, 5*time.Millisecond, func() (bool, error) { return met(), nil }); err != nil {
		t.Fatalf("waited too long for %s", what)
	}
}

func pending(t *testing.T, db *database) int {
	t.Helper()
	stats, err := db.Box.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stats.Pending
}

func TestHandler_AnswersSayWhatHappenedAndOnlyCommittedOrdersHaveEvents(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, open func() *database) {
		db := open()
		h := handler(db.place)
		for i, step := range []struct {
			method, body    string
			status, pending int
		}{
			{"POST", `{"id":"a","cents":100}`, http.StatusCreated, 1},
			{"POST", `{"id":"a","cents":100}`, http.StatusOK, 1},
			{"POST", `{"id":"a","cents":101}`, http.StatusConflict, 1},
			{"POST", `{"id":"none-left","cents":113}`, http.StatusUnprocessableEntity, 1},
			{"POST", `{"id":"not-yet","cents":117}`, http.StatusServiceUnavailable, 1},
			{"POST", `{"id":"not-yet","cents":117}`, http.StatusCreated, 2},
			{"POST", `{"id":"","cents":100}`, http.StatusBadRequest, 2},
			{"POST", `{"id":"a b","cents":100}`, http.StatusBadRequest, 2},
			{"POST", `{"id":"b","cents":0}`, http.StatusBadRequest, 2},
			{"POST", `{`, http.StatusBadRequest, 2},
			{"POST", `{"id":"` + strings.Repeat("x", shop.MaxBody) + `"}`, http.StatusBadRequest, 2},
			{"GET", ``, http.StatusMethodNotAllowed, 2},
		} {
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), step.method, "/orders",
				strings.NewReader(step.body)))
			if n := pending(t, db); answer.Code != step.status || n != step.pending {
				t.Errorf("step %d: status %d, %d events; want %d, %d\n%s", i, answer.Code, n, step.status,
					step.pending, answer.Body)
			}
		}
		var orders, cents int
		err := db.SQL.QueryRowContext(t.Context(), `SELECT count(*), sum(cents) FROM orders`).Scan(&orders, &cents)
		if err != nil || orders != 2 || cents != 100+117 {
			t.Errorf("%d orders of %d cents, %v", orders, cents, err)
		}
	})
}

// A held publisher keeps its first call until it is released. It is for one relay.
type taken struct {
	began, release chan struct{}
	once           sync.Once
}

func newHeld() *taken { return &taken{began: make(chan struct{}), release: make(chan struct{})} }

func (h *taken) Publish(context.Context, ...producer.Message) error {
	h.once.Do(func() {
		close(h.began)
		<-h.release
	})
	return nil
}

// A service under test is one that can be told to stop.
type running struct {
	*shop.Client
	address string
	stop    func()
	ended   chan error
	begun   atomic.Int64 // requests
}

func startService(t *testing.T, db *database, pub producer.Publisher) *running {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	s := &running{address: l.Addr().String(), stop: stop, ended: make(chan error, 1)}
	s.Client = shop.NewClient("http://" + s.address + "/orders")
	t.Cleanup(s.Close)
	inner := handler(db.place)
	counting := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.begun.Add(1)
		inner.ServeHTTP(w, r)
	})
	go func() {
		s.ended <- shop.Serve(ctx, l, counting, (&service{db: db, publisher: pub}).relay)
	}()
	return s
}

// send posts a body that need not be complete, and tells the status.
func (s *running) send(t *testing.T, body io.Reader) <-chan int {
	t.Helper()
	status := make(chan int, 1)
	before := s.begun.Load()
	go func() {
		defer close(status)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.address+"/orders", body)
		if err != nil {
			return
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return
		}
		response.Body.Close()
		status <- response.StatusCode
	}()
	until(t, "the request to begin", func() bool { return s.begun.Load() > before })
	return status
}

func TestServe_ShutdownFinishesRequestsWhileTheRelayWorksOn(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, open func() *database) {
		db := open()
		var published atomic.Int64
		s := startService(t, db, publishing(func(_ context.Context, messages ...producer.Message) error {
			published.Add(int64(len(messages)))
			return nil
		}))
		body1, rest1 := io.Pipe()
		body2, rest2 := io.Pipe()
		first, second := s.send(t, body1), s.send(t, body2)
		s.stop()
		until(t, "the server to refuse connections", func() bool { return refuses(t.Context(), s.address) })

		io.WriteString(rest1, `{"id":"first","cents":1}`)
		rest1.Close()
		if status := <-first; status != http.StatusCreated {
			t.Errorf("the request that had begun got %d", status)
		}
		until(t, "the relay to publish while the server drains", func() bool { return published.Load() == 1 })
		io.WriteString(rest2, `{"id":"second","cents":2}`)
		rest2.Close()
		if status := <-second; status != http.StatusCreated {
			t.Errorf("the request that had begun got %d", status)
		}
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
		if n := int(published.Load()) + pending(t, db); n != 2 {
			t.Errorf("%d events are published or pending, want 2", n)
		}
	})
}

func TestServe_ShutdownWaitsForTheRelaysBatch(t *testing.T) {
	t.Parallel()
	onDatabases(t, func(t *testing.T, open func() *database) {
		db, pub := open(), newHeld()
		s := startService(t, db, pub)
		status, err := s.Post(t.Context(), shop.Order{ID: "first", Cents: 1}.JSON())
		if err != nil || status != http.StatusCreated {
			t.Fatal(status, err)
		}
		<-pub.began
		s.stop()
		until(t, "the server to refuse connections", func() bool { return refuses(t.Context(), s.address) })
		moment := time.NewTimer(100 * time.Millisecond)
		defer moment.Stop()
		select {
		case err := <-s.ended:
			t.Fatalf("serve did not wait for the relay: %v", err)
		case <-moment.C:
		}
		close(pub.release)
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
		if n := pending(t, db); n != 0 {
			t.Errorf("%d events are pending: the batch was not settled", n)
		}
	})
}

func refuses(ctx context.Context, address string) bool {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

func TestServe_BrokenRelayEndsTheService(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err = shop.Serve(t.Context(), l, http.NotFoundHandler(), func(context.Context) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
