package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/bench/internal/servers"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
)

// connections are enough for the callers by hand: with more they hinder each other.
const connections = 64

func startPostgres(ctx context.Context, s *server) error {
	p, err := kit.StartPostgres()
	if err != nil {
		return err
	}
	s.Cleanup(p.Stop)
	pool, err := p.Pool(ctx, connections)
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	s.Cleanup(kit.Quiet(pool.Close), db.Close)
	s.hand = byRows(
		inPostgres(pool, `INSERT INTO hand (id, owner, rec, expires) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`),
		inPostgres(pool, `UPDATE hand SET rec = $1, expires = $2 WHERE id = $3 AND owner = $4`))
	empty := executed(db, `TRUNCATE hand, oncemill_dedup`)
	s.reset = func(ctx context.Context) error { return errors.Join(empty(ctx), p.Settle(ctx)) }
	s.extra = size(db, `SELECT pg_total_relation_size('hand') + pg_total_relation_size('oncemill_dedup')`)
	store, err := pgstore.New(pool, pgstore.Config{})
	return s.migrate(ctx, store, err, db, `CREATE TABLE hand (id text PRIMARY KEY, owner text NOT NULL,
		rec bytea NOT NULL, expires bigint NOT NULL)`)
}

func inPostgres(pool *pgxpool.Pool, query string) statement {
	return func(ctx context.Context, args ...any) (int64, error) {
		tag, err := pool.Exec(ctx, query, args...)
		return tag.RowsAffected(), err
	}
}

func startMySQL(ctx context.Context, s *server) error {
	db, giveBack, err := servers.StartMySQL(connections)
	if err != nil {
		return err
	}
	s.Cleanup(giveBack)
	s.reset = executed(db, `TRUNCATE hand`, `TRUNCATE oncemill_dedup`)
	s.extra = size(db, `SELECT SUM(data_length + index_length) FROM information_schema.tables
		WHERE table_schema = database()`, `ANALYZE TABLE hand`, `ANALYZE TABLE oncemill_dedup`)
	store, err := mysqlstore.New(db, mysqlstore.Config{})
	return errors.Join(s.migrate(ctx, store, err, db, `CREATE TABLE hand (
		id VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
		owner VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, rec BLOB NOT NULL, expires BIGINT NOT NULL)`),
		s.prepare(ctx, db, `INSERT IGNORE`))
}

// startSQLite has its database in a file. By hand, callers share one connection: there is one writer anyway.
func startSQLite(ctx context.Context, s *server) error {
	name, remove, err := servers.SQLite()
	if err != nil {
		return err
	}
	db, err1 := sql.Open("sqlite", name)
	alone, err2 := sql.Open("sqlite", name)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	s.Cleanup(remove, db.Close, alone.Close)
	alone.SetMaxOpenConns(1)
	s.reset = executed(alone, `DELETE FROM hand`, `DELETE FROM oncemill_dedup`)
	s.extra = size(alone, `SELECT page_size * (page_count - freelist_count)
		FROM pragma_page_size, pragma_page_count, pragma_freelist_count`)
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	return errors.Join(s.migrate(ctx, store, err, alone, `CREATE TABLE hand (
		id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, rec BLOB NOT NULL, expires INTEGER NOT NULL) STRICT`),
		s.prepare(ctx, alone, `INSERT OR IGNORE`))
}

// migrate makes the tables of a store and by hand.
func (s *server) migrate(ctx context.Context, store interface {
	dedupstore.Store
	Migrate(context.Context) error
}, err error, db *sql.DB, table string) error {
	if err != nil {
		return err
	}
	s.store = store
	return errors.Join(store.Migrate(ctx), executed(db, table)(ctx))
}

// prepare is the way by hand in a table of database/sql, with statements that are prepared once.
func (s *server) prepare(ctx context.Context, db *sql.DB, insert string) error {
	claim, err1 := prepared(ctx, db, insert+` INTO hand (id, owner, rec, expires) VALUES (?, ?, ?, ?)`)
	settle, err2 := prepared(ctx, db, `UPDATE hand SET rec = ?, expires = ? WHERE id = ? AND owner = ?`)
	s.hand = byRows(claim, settle)
	return errors.Join(err1, err2)
}

func prepared(ctx context.Context, db *sql.DB, query string) (statement, error) {
	s, err := db.PrepareContext(ctx, query) //nolint:sqlclosecheck // it is as long as the database
	return func(ctx context.Context, args ...any) (int64, error) {
		result, err := s.ExecContext(ctx, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	}, err
}

func executed(db *sql.DB, queries ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, query := range queries {
			if _, err := db.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		return nil
	}
}

// size is read by a query, after others.
func size(db *sql.DB, query string, before ...string) func(context.Context, float64) ([]kit.Figure, error) {
	return func(ctx context.Context, messages float64) ([]kit.Figure, error) {
		if err := executed(db, before...)(ctx); err != nil {
			return nil, err
		}
		var n int64
		err := db.QueryRowContext(ctx, query).Scan(&n)
		return recordSize(n, messages), err
	}
}
