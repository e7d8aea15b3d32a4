package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A database keeps orders and, in a table beside them, the outbox of their events. Its statements are the same on
// PostgreSQL and SQLite. (With pgx, a transaction's outbox is box.In(tx).) It is safe for concurrent use.
type database struct {
	db        *sql.DB
	box       box
	topic     string
	warehouse warehouse
	close     func(ctx context.Context, remove bool) error // removes what the run has made, if it is told to
}

// A box is an outbox that can be written, woken and looked into.
type box interface {
	outbox.Store
	outbox.Inspector
	InSQL(tx *sql.Tx) producer.Publisher
	Migrate(ctx context.Context) error
	Wake()
}

const table = `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents bigint NOT NULL)`

// place implements placing. It is one transaction: the order, its event, and what may still go wrong.
func (d *database) place(ctx context.Context, o shop.Order) (placed bool, err error) {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	placed, err = insertOrder(ctx, tx, o)
	if err != nil || !placed {
		return false, err
	}
	if err := d.box.InSQL(tx).Publish(ctx, event(d.topic, o)); err != nil {
		return false, err
	}
	if err := d.warehouse.reserve(o); err != nil {
		return false, err // takes back the order and its event
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	d.box.Wake() // the relay of this process publishes now what was committed
	return true, nil
}

// insertOrder waits for others who are placing the same order, and reports false if they did.
func insertOrder(ctx context.Context, tx *sql.Tx, o shop.Order) (inserted bool, err error) {
	const insert = `INSERT INTO orders (id, cents) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`
	result, err := tx.ExecContext(ctx, insert, o.ID, o.Cents)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err == nil, err
	}
	var cents int
	err = tx.QueryRowContext(ctx, `SELECT cents FROM orders WHERE id = $1`, o.ID).Scan(&cents)
	if err == nil && cents != o.Cents {
		err = errOther
	}
	return false, err
}

// A warehouse has what it is asked for, unless the amount says otherwise. It is safe for concurrent use.
type warehouse struct {
	asked      sync.Map // orders
	rolledBack atomic.Int64
}

// reserve takes the goods of an order. Its error takes back the transaction that it is called in.
func (w *warehouse) reserve(o shop.Order) error {
	_, again := w.asked.LoadOrStore(o.ID, true)
	switch {
	case o.Cents%20 == 13:
		w.rolledBack.Add(1)
		return errSoldOut
	case o.Cents%10 == 7 && !again:
		w.rolledBack.Add(1)
		return errors.New("the warehouse does not answer")
	}
	return nil
}

// openPostgres connects, and makes what is missing: a schema for the run, the orders and their outbox.
func openPostgres(ctx context.Context, url, schema, topic string) (*database, error) {
	pool, err := shop.OpenPostgres(ctx, url, schema, table)
	if err != nil {
		return nil, err
	}
	d := &database{db: stdlib.OpenDBFromPool(pool), topic: topic}
	d.close = func(ctx context.Context, remove bool) (err error) {
		if remove {
			_, err = d.db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`)
		}
		err = errors.Join(err, d.db.Close())
		pool.Close()
		return err
	}
	if d.box, err = pgoutbox.New(pool, pgoutbox.Config{}); err == nil {
		err = d.box.Migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.close(ctx, false))
	}
	return d, nil
}

// openSQLite stands in for PostgreSQL where nothing is installed. The file is in a temporary folder.
func openSQLite(ctx context.Context, dir, topic string) (*database, error) {
	db, err := sqliteoutbox.Open(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		return nil, err
	}
	d := &database{db: db, topic: topic}
	d.close = func(context.Context, bool) error { return db.Close() }
	if _, err = db.ExecContext(ctx, table); err == nil {
		d.box, err = sqliteoutbox.New(db, sqliteoutbox.Config{})
	}
	if err == nil {
		err = d.box.Migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}
