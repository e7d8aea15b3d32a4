package pgwal_test

import (
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The first of two hosts takes connections but says nothing, like a frozen primary. The second is the primary now.
func TestRelay_AHostThatHangsDoesNotHideTheNextOne(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { first.Close() })
	var frozen atomic.Bool
	go func() {
		for {
			c, err := first.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			if !frozen.Load() {
				c.Close()
			}
		}
	}()

	there := g.pool.Config().ConnConfig
	dsn := url.URL{
		Scheme: "postgres", User: url.User(there.User), Path: there.Database, Host: fmt.Sprintf("%s,%s:%d", first.Addr(), there.Host, there.Port),
		RawQuery: url.Values{"sslmode": {"disable"}, "target_session_attrs": {"read-write"}, "search_path": {there.RuntimeParams["search_path"]}}.Encode(),
	}
	config, err := pgxpool.ParseConfig(dsn.String())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	var conns []*pgxpool.Conn
	for range config.MaxConns {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		c.Release()
	}
	frozen.Store(true)
	g.write(message("order"))
	g.start(func(c *settings) { c.Pool, c.StoreTimeout = pool, 500*time.Millisecond })
	until(t, "the message", func() bool { return len(g.broker.got()) == 1 })
}
