// Package postgres keeps what the examples store in PostgreSQL.
package postgres

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

// Open returns a schema of a PostgreSQL server, which may be away unless there are tables to be made.
func Open(ctx context.Context, url, schema string, tables ...string) (_ *shop.Database, err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, shop.NoServer("postgres", shop.Redacted(url), err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = schema // where all statements of the example look for tables
	cfg.MaxConns = max(cfg.MaxConns, 8)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, shop.NoServer("postgres", shop.Redacted(url), err)
	}
	db := stdlib.OpenDBFromPool(pool)
	d := &shop.Database{
		SQL: db,
		Exec: func(ctx context.Context, statement string, args ...any) error {
			_, err := pgstore.Tx(ctx).Exec(ctx, statement, args...)
			return err
		},
		Remove: func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`)
			return err
		},
		Close: func() error {
			defer pool.Close()
			return db.Close()
		},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	box, err1 := pgoutbox.New(pool, pgoutbox.Config{})
	store, err2 := pgstore.New(pool, pgstore.Config{})
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	d.Box, d.Inbox, d.Leased, d.Publish = box, store.Inbox(), store, box.Publish // which finds the transaction itself
	if tables == nil {
		return d, nil
	}
	// Statements that are sent together are one transaction. Processes that begin together take turns with it: to
	// PostgreSQL, IF NOT EXISTS is no promise about what others are making at the same moment.
	script := `SELECT pg_advisory_xact_lock(hashtextextended('` + schema + `', 0));
		CREATE SCHEMA IF NOT EXISTS ` + schema + `; ` + strings.Join(tables, `; `)
	brief, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	if _, err := pool.Exec(brief, script); err != nil {
		return nil, shop.NoServer("postgres", shop.Redacted(url), err)
	}
	return d, d.Migrate(ctx)
}
