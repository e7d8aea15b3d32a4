package pgwal_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

// The name leads to another server, as after a move. The pool still has connections to the old one, whose log was
// confirmed beyond the end of the new one's.
func TestRelay_ConfirmsToAServerWhatThatHasShown(t *testing.T) {
	t.Parallel()
	before, after := postgrestest.Start(t), postgrestest.Start(t)
	after.Process() // they have to be two
	advance := before.Pool(t)
	for range 3 {
		if _, err := advance.Exec(t.Context(), `SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()`); err != nil {
			t.Fatal(err)
		}
	}
	g := newRigOn(t, after)
	old := newRigOn(t, before, func(c *settings) { c.Slot = g.config.Slot })
	if old.slot("confirmed_flush_lsn") < g.slot("confirmed_flush_lsn") { // both are 0/XXXXXXX
		t.Fatal("the old server's log is the shorter one")
	}

	var moved atomic.Bool
	there := g.pool.Config().ConnConfig
	pool := before.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 2
		c.ConnConfig.RuntimeParams["search_path"] = old.pool.Config().ConnConfig.RuntimeParams["search_path"]
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if moved.Load() {
				c.Host, c.Port, c.Fallbacks = there.Host, there.Port, nil
			}
			return nil
		}
	})
	var conns []*pgxpool.Conn
	for range pool.Config().MaxConns {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		c.Release()
	}
	moved.Store(true)
	g.write(message("order"))
	old.broker.set(func(context.Context, []producer.Message) error { return context.DeadlineExceeded })
	stop := old.start(func(c *settings) { c.Pool = pool })
	until(t, "the relay to see it", func() bool { return strings.Contains(old.log.String(), "leads to another server") })
	stop()
	g.start()
	until(t, "the message", func() bool { return len(g.broker.got()) == 1 })
}

// The name led to a standby for a moment, as an old address does after a failover. Connections to it work, and the pool
// would keep them for an hour.
func TestRelay_LeavesAStandbyWhenTheNameLeadsToThePrimary(t *testing.T) {
	t.Parallel()
	standby, primary := postgrestest.Start(t), postgrestest.Start(t)
	standby.Process() // they have to be two, and the test's own
	var data string
	if err := standby.Pool(t).QueryRow(t.Context(), `SHOW data_directory`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	standby.Kill()
	standby.Restart()

	g := newRigOn(t, primary)
	var moved atomic.Bool
	there := g.pool.Config().ConnConfig
	pool := standby.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = there.RuntimeParams["search_path"]
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if moved.Load() {
				c.Host, c.Port, c.Fallbacks = there.Host, there.Port, nil
			}
			return nil
		}
	})
	g.start(func(c *settings) { c.Pool = pool })
	until(t, "the warning", func() bool { return strings.Contains(g.log.String(), "is a standby") })
	moved.Store(true)
	g.write(message("order"))
	until(t, "the message", func() bool { return len(g.broker.got()) == 1 })
}
