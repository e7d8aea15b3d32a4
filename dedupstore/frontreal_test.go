package dedupstore_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/testserver"
)

func TestFront_OfRedisAndPostgresKeepsTheContractOfAnInbox(t *testing.T) {
	t.Parallel()
	pool := frontPool(t)
	store, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	cheap, err := redisstore.New(testserver.Redis(t).Client(), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// Some cases want the cheap store to answer in time, on a busy machine, too.
	front, err := dedupstore.NewFront(cheap, store.Inbox(), dedupstore.FrontConfig{Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("suite", func(t *testing.T) {
		storetest.RunInbox(t, func(t *testing.T) storetest.InboxSubject {
			return storetest.InboxSubject{
				Inbox: front,
				Lags:  true,
				Effect: func(ctx context.Context, name string) error {
					_, err := pgstore.Tx(ctx).Exec(ctx, `INSERT INTO effects VALUES ($1)`, name)
					return err
				},
				Effects: func(ctx context.Context, name string) (n int, err error) {
					err = pool.QueryRow(ctx, `SELECT count(*) FROM effects WHERE id = $1`, name).Scan(&n)
					return n, err
				},
			}
		})
	})
	if s := front.Stats(); s.Refused == 0 || s.Passed == 0 {
		t.Errorf("%+v, want claims that each store answered", s)
	}
	report, err := front.Check(t.Context())
	if err != nil || report.Store == "" {
		t.Errorf("%+v, %v", report, err)
	}
}

// frontPool has a schema of its own.
func frontPool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	schema := fmt.Sprintf("front_%d_%d", os.Getpid(), time.Now().UnixNano())
	pool := testserver.SharedPostgres(t).Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 16
		c.ConnConfig.RuntimeParams["search_path"] = schema
	})
	for _, query := range []string{`CREATE SCHEMA ` + schema, `CREATE TABLE effects (id text NOT NULL)`} {
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.WithoutCancel(t.Context()), `DROP SCHEMA `+schema+` CASCADE`); err != nil {
			t.Error(err)
		}
	})
	return pool
}
