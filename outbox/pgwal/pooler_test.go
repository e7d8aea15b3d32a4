package pgwal_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/pgwal"
)

// Setup seems to work through a pooler, but leaves its lock on a connection of others, and all later ones wait for that.
func TestSetup_SaysThatAPoolerKeepsItsLock(t *testing.T) {
	t.Parallel()
	db := testserver.SharedPostgres(t).NewDatabase(t)
	direct, pool := db.Pool(t), testserver.PgBouncerPool(t, db.DSN())
	box, err := pgoutbox.New(direct, pgoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	slot := fmt.Sprintf("pooler_%d_%d", os.Getpid(), schemas.Add(1))
	relay, err := pgwal.New(pgwal.Config{Pool: pool, Slot: slot}, newBroker())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := direct.Exec(context.Background(), `SELECT pg_drop_replication_slot($1)`, slot); err != nil {
			t.Error(err)
		}
	})

	others, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	for range 6 {
		ended.Go(func() {
			for others.Err() == nil {
				_, _ = pool.Exec(others, `SELECT pg_sleep(0.002)`)
			}
		})
	}
	defer ended.Wait()
	defer stop()
	bounded, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	until(t, "an error", func() bool { // at times the lock is given back where it was taken
		err = relay.Setup(bounded)
		return err != nil
	})
	wantSetupError(t, err, "pooler", "primary itself")
}
