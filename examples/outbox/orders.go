package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// A database keeps orders and, in a table beside them, the outbox of their events. Its statements are the same on
// PostgreSQL and SQLite. (With pgx, a transaction's outbox is box.In(tx).) It is safe for concurrent use.
type database struct {
	*shop.Database
	topic     string
	warehouse warehouse
}

const table = `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents bigint NOT NULL)`

// place implements placing. It is one transaction: the order, its event, and what may still go wrong.
func (d *database) place(ctx context.Context, o shop.Order) (placed bool, err error) {
	tx, err := d.SQL.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	placed, err = insertOrder(ctx, tx, o)
	if err != nil || !placed {
		return false, err
	}
	if err := d.Box.InSQL(tx).Publish(ctx, event(d.topic, o)); err != nil {
		return false, err
	}
	if err := d.warehouse.reserve(o); err != nil {
		return false, err // takes back the order and its event
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	d.Box.Wake() // the relay of this process publishes now what was committed
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
