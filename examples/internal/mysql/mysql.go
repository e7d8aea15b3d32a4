// Package mysql keeps what the examples store in MySQL.
package mysql

import (
	"context"
	"database/sql"
	"errors"
	"net/url"

	"github.com/go-sql-driver/mysql"

	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
)

// Open returns a database of a MySQL or MariaDB server, which may be away unless there are tables to be made.
func Open(ctx context.Context, address, name string, tables ...string) (_ *shop.Database, err error) {
	at, err := url.Parse(address)
	if err != nil || at.Scheme != "mysql" {
		err = errors.Join(errors.New("want mysql://USER@HOST:PORT"), err)
		return nil, shop.NoServer("mysql", shop.Redacted(address), err)
	}
	config, err := mysql.ParseDSN(sqlstore.MySQLDSN(at))
	if err != nil {
		return nil, shop.NoServer("mysql", shop.Redacted(address), err)
	}
	config.Logger, config.DBName = &mysql.NopLogger{}, ""
	make := config.FormatDSN()
	config.DBName = name
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, shop.NoServer("mysql", shop.Redacted(address), err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxIdleConns(16)
	d := &shop.Database{
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
	brief, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	server, err := sql.Open("mysql", make)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	if _, err := server.ExecContext(brief, "CREATE DATABASE IF NOT EXISTS "+name); err != nil {
		return nil, shop.NoServer("mysql", shop.Redacted(address), err)
	}
	for _, table := range tables {
		if _, err := db.ExecContext(ctx, table); err != nil {
			return nil, err
		}
	}
	return d, d.Migrate(ctx)
}
