package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// A sqlite stands in for PostgreSQL where nothing is installed.
type sqlite struct {
	db      *sql.DB
	box     *sqliteoutbox.Outbox
	topic   string
	reserve reserving
}

// place implements placing. It is one transaction: the order, its event, and what may still go wrong.
func (s *sqlite) place(ctx context.Context, o shop.Order) (placed bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	placed, err = insertOrderSQL(ctx, tx, o)
	if err != nil || !placed {
		return false, err
	}
	if err := s.box.InSQL(tx).Publish(ctx, event(s.topic, o)); err != nil {
		return false, err
	}
	if err := s.reserve(ctx, o); err != nil {
		return false, err // takes back the order and its event
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	s.box.Wake() // the relay of this process publishes now what was committed
	return true, nil
}

// insertOrderSQL reports false for an order that is there already.
func insertOrderSQL(ctx context.Context, tx *sql.Tx, o shop.Order) (inserted bool, err error) {
	result, err := tx.ExecContext(ctx, `INSERT INTO orders (id, cents) VALUES (?, ?) ON CONFLICT (id) DO NOTHING`, o.ID, o.Cents)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err == nil, err
	}
	var cents int
	err = tx.QueryRowContext(ctx, `SELECT cents FROM orders WHERE id = ?`, o.ID).Scan(&cents)
	if err == nil && cents != o.Cents {
		err = errOther
	}
	return false, err
}

func openSQLite(ctx context.Context, dir, topic string, reserve reserving) (database, error) {
	db, err := sqliteoutbox.Open(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		return nil, err
	}
	s := &sqlite{db: db, topic: topic, reserve: reserve}
	_, err = db.ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL)`)
	if err == nil {
		s.box, err = sqliteoutbox.New(db, sqliteoutbox.Config{})
	}
	if err == nil {
		err = s.box.Migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// outbox implements database.
func (s *sqlite) outbox() box { return s.box }

// orders implements database.
func (s *sqlite) orders(ctx context.Context) (map[string]shop.Order, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, cents FROM orders`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[string]shop.Order{}
	for rows.Next() {
		var o shop.Order
		if err := rows.Scan(&o.ID, &o.Cents); err != nil {
			return nil, err
		}
		all[o.ID] = o
	}
	return all, rows.Err()
}

// close implements database.
func (s *sqlite) close(context.Context) error { return s.db.Close() }
