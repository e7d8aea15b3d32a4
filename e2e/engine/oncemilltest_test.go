package engine_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/oncemilltest"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// effectsOf tests every scenario over a real store: how many effects each leaves, and that none waits for the lease. A
// crash after the effect, or a failure, leaves as many effects as the last argument says.
func effectsOf(
	t *testing.T, store dedupstore.Store, effect func(ctx context.Context) error, count func() int, crash int,
) {
	t.Helper()
	c := oncemilltest.Case{Store: store, Handler: effect}
	for _, s := range []struct {
		name       string
		do         func(context.Context) (int, error)
		runs, want int
	}{
		{"Once", func(ctx context.Context) (int, error) { return 1, c.Once(ctx) }, 1, 1},
		{"Twice", c.Twice, 1, 1},
		{"Together", c.Together, 1, 1},
		{"CrashAfterEffect", c.CrashAfterEffect, 2, crash},
		{"FailThenSucceed", c.FailThenSucceed, 2, crash},
	} {
		before, began := count(), time.Now()
		runs, err := s.do(t.Context())
		if effects := count() - before; runs != s.runs || effects != s.want || err != nil {
			t.Errorf("%s: %d runs, %d effects, %v; want %d and %d", s.name, runs, effects, err, s.runs, s.want)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("%s took %v, as long as half a lease", s.name, took)
		}
	}
}

// outside are effects that no store knows of.
type outside struct{ counter }

func (o *outside) effect(ctx context.Context) error {
	_, err := o.run(ctx)
	return err
}

func (o *outside) count() int { return int(o.runs.Load()) }

const (
	makeEffects = `CREATE TABLE effects (name TEXT)`
	addEffect   = `INSERT INTO effects (name) VALUES ('effect')`
	countEffect = `SELECT count(*) FROM effects`
)

func TestCase_OverRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(redistest.Start(t).Options())
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var o outside
	effectsOf(t, store, o.effect, o.count, 2)
}

func TestCase_OverPostgreSQL(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Shared(t).NewDatabase(t).Pool(t)
	store, err := pgstore.New(pool, pgstore.Config{})
	if err == nil {
		err = store.Migrate(t.Context())
	}
	if err == nil {
		_, err = pool.Exec(t.Context(), makeEffects)
	}
	if err != nil {
		t.Fatal(err)
	}
	var o outside
	effectsOf(t, store, o.effect, o.count, 2)

	rows := func() (n int) {
		if err := pool.QueryRow(t.Context(), countEffect).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}
	effectsOf(t, store.Inbox(), func(ctx context.Context) error {
		_, err := pgstore.Tx(ctx).Exec(ctx, addEffect)
		return err
	}, rows, 1)
	effectsOf(t, store.InboxSQL(), func(ctx context.Context) error {
		return exec(ctx, pgstore.SQLTx(ctx))
	}, rows, 1)
}

func TestCase_OverSQLite(t *testing.T) {
	t.Parallel()
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "cases.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err == nil {
		err = store.Migrate(t.Context())
	}
	if err == nil {
		_, err = db.ExecContext(t.Context(), makeEffects)
	}
	if err != nil {
		t.Fatal(err)
	}
	var o outside
	effectsOf(t, store, o.effect, o.count, 2)
	effectsOf(t, store.Inbox(), func(ctx context.Context) error {
		return exec(ctx, sqlitestore.Tx(ctx))
	}, func() (n int) {
		if err := db.QueryRowContext(t.Context(), countEffect).Scan(&n); err != nil {
			t.Error(err)
		}
		return n
	}, 1)
}

func exec(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, addEffect)
	return err
}
