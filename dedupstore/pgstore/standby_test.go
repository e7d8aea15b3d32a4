package pgstore

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// TestStore_LeavesAServerThatOnlyReads has the name of the primary lead to a standby for a moment. That happens after a
// failover, if the old primary comes back as a standby at the old address. Connections to it work, and the pool would
// keep them for an hour.
func TestStore_LeavesAServerThatOnlyReads(t *testing.T) {
	t.Parallel()
	old, primary := postgrestest.Start(t), postgrestest.Start(t)
	old.Process() // they have to be two, and the test's own
	newStore(t, old.Pool(t), Config{})
	newStore(t, primary.Pool(t), Config{})
	var data string
	if err := old.Pool(t).QueryRow(t.Context(), `SHOW data_directory`).Scan(&data); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	old.Kill()
	old.Restart()

	var moved atomic.Bool
	there := primary.Pool(t).Config().ConnConfig
	pool := old.Pool(t, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if moved.Load() {
				c.Host, c.Port, c.Fallbacks = there.Host, there.Port, nil
			}
			return nil
		}
	})
	s := unmigrated(t, pool, Config{})
	attempt := func() error {
		_, err := dedupstore.ClaimOne(t.Context(), s, request("1"))
		return err
	}
	if problem := schemaProblem(attempt(), "only reads"); problem != nil {
		t.Fatal(problem)
	}
	moved.Store(true)
	until(t, "the primary", func() bool { return attempt() == nil })
}

// A pool that only reads, as in a database whose disk is full, is not connected anew for each of its stores.
func TestStore_StoresOfAPoolThatOnlyReadsResetItTogether(t *testing.T) {
	t.Parallel()
	writes := newPool(t)
	newStore(t, writes, Config{})
	var connected atomic.Int64
	pool := poolIn(t, writes.Config().ConnConfig.RuntimeParams["search_path"], func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			connected.Add(1)
			return nil
		}
	})
	began := time.Now()
	for range 20 {
		_, err := dedupstore.ClaimOne(t.Context(), unmigrated(t, pool, Config{}), request("1"))
		if problem := schemaProblem(err, "only reads"); problem != nil {
			t.Fatal(problem)
		}
	}
	if most := 2 + int64(time.Since(began)/time.Second); connected.Load() > most {
		t.Errorf("%d connections of 20 stores, one at a time, want at most %d", connected.Load(), most)
	}
}
