package pgoutbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

func TestWriter_WhatARelayGetsSurvivesACrashOfTheServer(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("ordered=%v", ordered), func(t *testing.T) {
			t.Parallel()
			server := postgrestest.Start(t, "synchronous_commit=off", "wal_writer_delay=10s")
			pool := server.Pool(t)
			mustExec(t, pool, `CREATE TABLE orders (id text PRIMARY KEY)`)
			box := boxIn(t, pool, pgoutbox.Config{Ordered: ordered})
			mustExec(t, pool, `CHECKPOINT`)

			tx := begin(t, pool)
			if _, err := tx.Exec(t.Context(), `INSERT INTO orders VALUES ('1')`); err != nil {
				t.Fatal(err)
			}
			publish(t, box, tx, keyed("a", "1"))
			commit(t, tx)
			if rows := lease(t, box, "relay", time.Minute); len(rows) != 1 {
				t.Fatalf("leased %v", idsOf(rows))
			}
			server.Kill()
			server.Restart()
			relaytest.Eventually(t, "the server is back", func() bool { return pool.Ping(t.Context()) == nil })
			if n := ordersIn(t, pool); n != 1 || count(t, pool, "true") != 1 {
				t.Errorf("ordered %v: a relay got the message, and after a crash there are %d orders and %d rows", ordered, n, count(t, pool, "true"))
			}
		})
	}
}

func ordersIn(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM orders`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
