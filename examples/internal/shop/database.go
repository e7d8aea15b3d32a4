package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/outbox"
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
		dedupstore.Inspector
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

// Migrate makes what is missing of the outbox and the store.
func (d *Database) Migrate(ctx context.Context) error {
	if err := errors.Join(d.Box.Migrate(ctx), d.Leased.Migrate(ctx)); err != nil {
		return err
	}
	_, err := d.Leased.Check(ctx) // whether the server keeps what it confirms
	return err
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
	if err := d.Migrate(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}
