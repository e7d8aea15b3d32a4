package http_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// The stores that outlive a process. Each has a place, by which another process finds it.
const (
	onRedis         = "redis"
	onPostgres      = "postgres"
	onPostgresInbox = "postgres inbox"
	onMySQL         = "mysql"
	onMySQLInbox    = "mysql inbox"
	onSQLite        = "sqlite"
	onSQLiteInbox   = "sqlite inbox"
)

var durable = []string{onRedis, onPostgres, onPostgresInbox, onMySQL, onMySQLInbox, onSQLite, onSQLiteInbox}

func TestMiddleware_OverDurableStores(t *testing.T) {
	t.Parallel()
	backends := map[string]func(t testing.TB) *keytest.Backend{}
	for _, kind := range durable {
		backends[kind] = func(t testing.TB) *keytest.Backend { return openFor(t, kind, newPlace(t, kind)) }
	}
	keytest.Run(t, backends)
}

// newPlace makes an empty place for a kind of store.
func newPlace(t testing.TB, kind string) string {
	t.Helper()
	switch kind {
	case onRedis:
		return redistest.Start(t).Addr
	case onPostgres, onPostgresInbox:
		return postgrestest.Shared(t).NewDatabase(t).DSN()
	case onMySQL, onMySQLInbox:
		return mysqltest.Shared(t).NewDatabase(t).DSN()
	}
	return filepath.Join(t.TempDir(), "shop.db")
}

func openFor(t testing.TB, kind, place string) *keytest.Backend {
	t.Helper()
	b, closeAll, err := open(context.Background(), kind, place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	return b
}

// open opens the store and the table of payments in a place, in this process or in one that will be killed.
func open(ctx context.Context, kind, place string) (*keytest.Backend, func(), error) {
	switch kind {
	case onRedis:
		return openRedis(place)
	case onPostgres, onPostgresInbox:
		return openPostgres(ctx, place, kind == onPostgresInbox)
	case onMySQL, onMySQLInbox:
		return openMySQL(ctx, place, kind == onMySQLInbox)
	}
	return openSQLite(ctx, place, kind == onSQLiteInbox)
}

func openRedis(addr string) (*keytest.Backend, func(), error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	store, err := redisstore.New(rdb, redisstore.Config{})
	return &keytest.Backend{
		Store: store,
		Pay: func(r *http.Request, id string) error {
			return rdb.Incr(r.Context(), "payments:"+id).Err()
		},
		Payments: func(id string) int {
			n, err := rdb.Get(context.Background(), "payments:"+id).Int()
			if err != nil && !errors.Is(err, redis.Nil) {
				panic(err)
			}
			return n
		},
	}, func() { rdb.Close() }, err
}

func message(id string) producer.Message {
	return producer.Message{ID: id, Topic: "payments", Payload: []byte("paid")}
}

func openPostgres(ctx context.Context, dsn string, transacted bool) (*keytest.Backend, func(), error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	store, err := pgstore.New(pool, pgstore.Config{Logger: keytest.Quiet()})
	if err != nil {
		return nil, nil, err
	}
	box, err := pgoutbox.New(pool, pgoutbox.Config{})
	if err != nil {
		return nil, nil, err
	}
	for _, step := range []func(context.Context) error{
		store.Migrate, box.Migrate,
		func(ctx context.Context) error {
			_, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS payments (id text NOT NULL)`)
			return err
		},
	} {
		if err := step(ctx); err != nil {
			return nil, nil, err
		}
	}
	const insert = `INSERT INTO payments (id) VALUES ($1)`
	b := &keytest.Backend{Store: store}
	b.Pay = func(r *http.Request, id string) error {
		_, err := pool.Exec(r.Context(), insert, id)
		return err
	}
	b.Payments = func(id string) int {
		return counted(func(n *int) error {
			return pool.QueryRow(context.Background(), `SELECT count(*) FROM payments WHERE id = $1`, id).Scan(n)
		})
	}
	if transacted {
		b.Store = store.Inbox()
		b.Pay = func(r *http.Request, id string) error {
			tx := pgstore.Tx(r.Context())
			if _, err := tx.Exec(r.Context(), insert, id); err != nil {
				return err
			}
			return box.In(tx).Publish(r.Context(), message(id))
		}
		b.Rows = func(id string) int {
			return counted(func(n *int) error {
				return pool.QueryRow(context.Background(), `SELECT count(*) FROM oncemill_outbox WHERE id = $1`,
					id).Scan(n)
			})
		}
	}
	return b, pool.Close, nil
}

func openSQLite(ctx context.Context, path string, transacted bool) (*keytest.Backend, func(), error) {
	db, err := sqliteoutbox.Open(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	store, err := sqlitestore.New(db, sqlitestore.Config{Logger: keytest.Quiet()})
	if err != nil {
		return nil, nil, err
	}
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		return nil, nil, err
	}
	return openSQL(ctx, db, store, store.Inbox(), box, sqlitestore.Tx, transacted)
}

func openMySQL(ctx context.Context, dsn string, transacted bool) (*keytest.Backend, func(), error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, nil, err
	}
	store, err := mysqlstore.New(db, mysqlstore.Config{Logger: keytest.Quiet()})
	if err != nil {
		return nil, nil, err
	}
	box, err := mysqloutbox.New(db, mysqloutbox.Config{})
	if err != nil {
		return nil, nil, err
	}
	return openSQL(ctx, db, store, store.Inbox(), box, mysqlstore.Tx, transacted)
}

// A migrator is a store or an outbox.
type migrator interface {
	Migrate(ctx context.Context) error
}

// openSQL makes the tables of a database of database/sql.
func openSQL(
	ctx context.Context, db *sql.DB,
	store interface {
		dedupstore.Store
		migrator
	}, inbox dedupstore.Transactor,
	box interface {
		migrator
		InSQL(tx *sql.Tx) producer.Publisher
	}, txOf func(context.Context) *sql.Tx, transacted bool,
) (*keytest.Backend, func(), error) {
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS payments (id VARCHAR(200) NOT NULL)`)
	if err := errors.Join(err, store.Migrate(ctx), box.Migrate(ctx)); err != nil {
		return nil, nil, err
	}
	b := &keytest.Backend{Store: store}
	b.Pay = func(r *http.Request, id string) error { return insertSQL(r.Context(), db, id) }
	b.Payments = func(id string) int {
		return counted(func(n *int) error {
			return db.QueryRowContext(context.Background(), `SELECT count(*) FROM payments WHERE id = ?`, id).Scan(n)
		})
	}
	if transacted {
		b.Store = inbox
		b.Pay = func(r *http.Request, id string) error {
			tx := txOf(r.Context())
			if err := insertSQL(r.Context(), tx, id); err != nil {
				return err
			}
			return box.InSQL(tx).Publish(r.Context(), message(id))
		}
		b.Rows = func(id string) int {
			return counted(func(n *int) error {
				return db.QueryRowContext(context.Background(), `SELECT count(*) FROM oncemill_outbox WHERE id = ?`,
					id).Scan(n)
			})
		}
	}
	return b, func() { db.Close() }, nil
}

func insertSQL(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, id string,
) error {
	_, err := db.ExecContext(ctx, `INSERT INTO payments (id) VALUES (?)`, id)
	return err
}

func counted(query func(n *int) error) (n int) {
	if err := query(&n); err != nil {
		panic(err)
	}
	return n
}

// serverError is a handler that pays and then fails.
func serverError(b *keytest.Backend, w http.ResponseWriter, r *http.Request) {
	run := oncemill.FromContext(r.Context())
	if err := b.Pay(r, run.ID("payments")); err != nil {
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusInternalServerError)
	fmt.Fprint(w, run.ID("payments"))
}
