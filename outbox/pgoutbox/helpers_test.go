package pgoutbox_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

var (
	message   = relaytest.Message
	numbered  = relaytest.Numbered
	lease     = relaytest.Lease
	leaseKind = relaytest.LeaseKind
	settle    = relaytest.Settle
	idsOf     = relaytest.IDs
	stats     = relaytest.Stats
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "8") // unless -parallel says otherwise: tests wait for the server, and for leases to end
	goleak.VerifyTestMain(m)
}

var schemas atomic.Int64

// newPool returns a pool of connections to a new schema, with a table of orders. A new database for each test would
// take longer.
func newPool(t testing.TB, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	schema := fmt.Sprintf("test_%d_%d", os.Getpid(), schemas.Add(1))
	pool := poolIn(t, schema, configure...)
	mustExec(t, pool, `CREATE SCHEMA `+schema)
	t.Cleanup(func() { mustExec(t, pool, `DROP SCHEMA `+schema+` CASCADE`) })
	mustExec(t, pool, `CREATE TABLE orders (id text PRIMARY KEY)`)
	return pool
}

// poolIn returns a pool of connections to a schema.
func poolIn(t testing.TB, schema string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return postgrestest.Shared(t).Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 16
		c.ConnConfig.RuntimeParams["search_path"] = schema
		for _, f := range configure {
			f(c)
		}
	})
}

// newBox returns an outbox in a new database.
func newBox(t testing.TB) (*pgoutbox.Outbox, *pgxpool.Pool) {
	t.Helper()
	pool := newPool(t)
	return boxIn(t, pool, pgoutbox.Config{}), pool
}

func boxIn(t testing.TB, pool *pgxpool.Pool, cfg pgoutbox.Config) *pgoutbox.Outbox {
	t.Helper()
	box := unmigrated(t, pool, cfg)
	if err := box.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return box
}

func unmigrated(t testing.TB, pool *pgxpool.Pool, cfg pgoutbox.Config) *pgoutbox.Outbox {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	box, err := pgoutbox.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

func mustExec(t testing.TB, pool *pgxpool.Pool, query string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func rollback(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// write commits messages in a transaction of their own.
func write(t testing.TB, box *pgoutbox.Outbox, pool *pgxpool.Pool, messages ...producer.Message) {
	t.Helper()
	tx := begin(t, pool)
	if err := box.In(tx).Publish(context.Background(), messages...); err != nil {
		t.Fatal(err)
	}
	commit(t, tx)
}

func count(t testing.TB, db *pgxpool.Pool, where string) (n int) {
	t.Helper()
	if err := db.QueryRow(context.Background(), `SELECT count(*) FROM oncemill_outbox WHERE `+where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func sorted(m map[string]int) (ids []string) {
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// leased is how many rows are leased.
func leased(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT coalesce(sum(cardinality(numbers)), 0) FROM oncemill_outbox_lease`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func dead(t testing.TB, box *pgoutbox.Outbox) []outbox.RowInfo {
	t.Helper()
	page, err := box.List(context.Background(), outbox.Filter{States: []outbox.State{outbox.Dead}}, "")
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}
