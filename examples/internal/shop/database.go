package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A Database is PostgreSQL, MySQL or SQLite, with an outbox and a dedup store beside the example's own tables. A
// program of yours has one of them, and needs none of this. It is safe for concurrent use.
type Database struct {
	SQL    *sql.DB
	Box    Box
	Inbox  dedupstore.Transactor
	Leased interface { // for handlers whose effects are elsewhere
		dedupstore.Store
		Migrate(ctx context.Context) error
		Check(ctx context.Context) (dedupstore.Report, error)
		RunCleaning(ctx context.Context) error
	}

	// Exec and Publish write in the transaction of the inbox that ctx carries: tables of the example, and the outbox.
	Exec    func(ctx context.Context, statement string, args ...any) error
	Publish func(ctx context.Context, messages ...producer.Message) error

	Remove func(ctx context.Context) error // removes what the run has made
	Close  func() error
}

// A Box is an outbox that can be written, woken and looked into.
type Box interface {
	outbox.Store
	outbox.Inspector
	InSQL(tx *sql.Tx) producer.Publisher
	Migrate(ctx context.Context) error
	Wake()
}

// migrate makes what is missing of the outbox and the store.
func (d *Database) migrate(ctx context.Context) error {
	if err := errors.Join(d.Box.Migrate(ctx), d.Leased.Migrate(ctx)); err != nil {
		return err
	}
	_, err := d.Leased.Check(ctx) // whether the server keeps what it confirms
	return err
}

// OpenPostgres returns a schema of a PostgreSQL server, which may be away unless there are tables to be made.
func OpenPostgres(ctx context.Context, url, schema string, tables ...string) (_ *Database, err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, NoServer("postgres", Redacted(url), err)
	}
	cfg.ConnConfig.RuntimeParams["search_path"] = schema // where all statements of the example look for tables
	cfg.MaxConns = max(cfg.MaxConns, 8)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, NoServer("postgres", Redacted(url), err)
	}
	db := stdlib.OpenDBFromPool(pool)
	d := &Database{
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
	brief, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	if _, err := pool.Exec(brief, script); err != nil {
		return nil, NoServer("postgres", Redacted(url), err)
	}
	return d, d.migrate(ctx)
}

// OpenSQLite returns a file, in which it makes what is missing.
func OpenSQLite(ctx context.Context, file string, tables ...string) (*Database, error) {
	db, err := sqliteoutbox.Open(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("open the SQLite file %s: %w", file, err)
	}
	box, err1 := sqliteoutbox.New(db, sqliteoutbox.Config{})
	store, err2 := sqlitestore.New(db, sqlitestore.Config{})
	_, err3 := db.ExecContext(ctx, strings.Join(tables, ";"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	d := &Database{
		SQL: db, Box: box, Inbox: store.Inbox(), Leased: store,
		Exec: func(ctx context.Context, statement string, args ...any) error {
			_, err := sqlitestore.Tx(ctx).ExecContext(ctx, statement, args...)
			return err
		},
		Publish: func(ctx context.Context, messages ...producer.Message) error {
			return box.InSQL(sqlitestore.Tx(ctx)).Publish(ctx, messages...)
		},
		Remove: func(context.Context) error { return nil }, // the file belongs to whoever named it
		Close:  db.Close,
	}
	if err := d.migrate(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

// OpenMySQL returns a database of a MySQL or MariaDB server, which may be away unless there are tables to be made.
func OpenMySQL(ctx context.Context, address, name string, tables ...string) (_ *Database, err error) {
	at, err := url.Parse(address)
	if err != nil || at.Scheme != "mysql" {
		return nil, NoServer("mysql", Redacted(address), errors.Join(errors.New("want mysql://USER@HOST:PORT"), err))
	}
	config, err := mysql.ParseDSN(sqlstore.MySQLDSN(at))
	if err != nil {
		return nil, NoServer("mysql", Redacted(address), err)
	}
	config.Logger, config.DBName = &mysql.NopLogger{}, ""
	make := config.FormatDSN()
	config.DBName = name
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, NoServer("mysql", Redacted(address), err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(16)
	d := &Database{
		SQL: db,
		Exec: func(ctx context.Context, statement string, args ...any) error {
			_, err := mysqlstore.Tx(ctx).ExecContext(ctx, statement, args...)
			return err
		},
		Remove: func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name)
			return err
		},
		Close: db.Close,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	box, err1 := mysqloutbox.New(db, mysqloutbox.Config{})
	store, err2 := mysqlstore.New(db, mysqlstore.Config{})
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	d.Box, d.Inbox, d.Leased, d.Publish = box, store.Inbox(), store, box.Publish // which finds the transaction itself
	if tables == nil {
		return d, nil
	}
	brief, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	server, err := sql.Open("mysql", make)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	if _, err := server.ExecContext(brief, "CREATE DATABASE IF NOT EXISTS "+name); err != nil {
		return nil, NoServer("mysql", Redacted(address), err)
	}
	for _, table := range tables {
		if _, err := db.ExecContext(ctx, table); err != nil {
			return nil, err
		}
	}
	return d, d.migrate(ctx)
}
