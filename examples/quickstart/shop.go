package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// A store is the shop: it takes orders and keeps the ledgers, in one SQLite file.
type store struct {
	names names
	db    *sql.DB
	box   shop.Box
}

const schema = `
CREATE TABLE IF NOT EXISTS run (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), name TEXT NOT NULL);
INSERT INTO run VALUES (1, lower(hex(randomblob(4)))) ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount INTEGER NOT NULL);
-- One row for each charge that a customer would see on the card. No unique key: the ledger is the outside world here.
CREATE TABLE IF NOT EXISTS ledger (
	entry INTEGER PRIMARY KEY AUTOINCREMENT,
	stack TEXT NOT NULL, order_id TEXT NOT NULL, amount INTEGER NOT NULL, pid INTEGER NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS ledger_by_order ON ledger (stack, order_id);
-- When a run of the guarded handler had its outcome stored: what the crash test compares double charges with.
CREATE TABLE IF NOT EXISTS settled (entry INTEGER PRIMARY KEY, at INTEGER NOT NULL);
-- What each stack was delivered and ran, and which faults were injected, so that a restarted process does not do so.
CREATE TABLE IF NOT EXISTS log (stack TEXT NOT NULL, event TEXT NOT NULL, order_id TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS log_by_order ON log (stack, event, order_id);
`

func openStore(ctx context.Context, dir string) (*store, error) {
	d, err := shop.OpenSQLite(ctx, filepath.Join(dir, "shop.db"), schema)
	if err != nil {
		return nil, err
	}
	s := &store{db: d.SQL, box: d.Box}
	if err := s.db.QueryRowContext(ctx, `SELECT name FROM run`).Scan(&s.names.run); err != nil {
		return nil, errors.Join(fmt.Errorf("set up the shop's database: %w", err), s.db.Close())
	}
	return s, nil
}

// place writes an order and its event in one transaction. The customer may press the button twice.
func (s *store) place(ctx context.Context, o shop.Order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	const insert = `INSERT INTO orders (id, amount) VALUES (?, ?) ON CONFLICT DO NOTHING`
	added, err := changes(tx.ExecContext(ctx, insert, o.ID, o.Cents))
	if err != nil || added == 0 {
		return err
	}
	event := producer.Message{ID: o.ID, Topic: s.names.orders(), Key: o.ID, Payload: o.JSON()}
	if err := s.box.InSQL(tx).Publish(ctx, event); err != nil {
		return err
	}
	return tx.Commit()
}

// placeWithLuck places one order until that worked, and injects its fault if that is the producer's: copies that are
// published past the outbox.
func placeWithLuck(ctx context.Context, s *store, b *broker, p plannedOrder) error {
	// While a server is away, producers repeat what failed.
	insist := func(do func() error) error {
		return shop.Poll(ctx, 100*time.Millisecond, func() (bool, error) { return do() == nil, nil })
	}
	if err := insist(func() error { return s.place(ctx, p.Order) }); err != nil {
		return fmt.Errorf("place %s: %w", p.ID, err)
	}
	var copies []shop.Order
	switch p.fault {
	case producerRetry, poisonOrder: // a poison order is sent again too: its failure is replayed
		copies = []shop.Order{p.Order}
	case twinCopies:
		copies = []shop.Order{p.Order, p.Order}
	case changedAmount:
		copies = []shop.Order{{ID: p.ID, Cents: p.Cents + 1}}
	default:
		return nil
	}
	if first, err := s.first(ctx, "producer", p.ID); err != nil || !first {
		return err
	}
	if p.fault == changedAmount { // the first amount is to win: the point is what becomes of the second
		err := shop.Poll(ctx, 10*time.Millisecond, func() (charged bool, err error) {
			const ask = `SELECT EXISTS (SELECT * FROM ledger WHERE stack = ? AND order_id = ?)`
			err = s.db.QueryRowContext(ctx, ask, guarded, p.ID).Scan(&charged)
			return charged, err
		})
		if err != nil {
			return err
		}
	}
	return shop.Each(ctx, len(copies), len(copies), func(ctx context.Context, i int) error {
		return insist(func() error { return shop.PublishCopy(ctx, b.js, b.names.orders(), p.ID, copies[i].JSON()) })
	})
}

// note writes down what happened.
func (s *store) note(ctx context.Context, stack, event, orderID string) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO log VALUES (?, ?, ?)`, stack, event, orderID)
	return err
}

// first reports whether the fault of an order was not injected before, and notes that it is now.
func (s *store) first(ctx context.Context, stack, orderID string) (bool, error) {
	n, err := changes(s.db.ExecContext(ctx, `INSERT INTO log SELECT ?1, 'fault', ?2
		WHERE NOT EXISTS (SELECT * FROM log WHERE stack = ?1 AND event = 'fault' AND order_id = ?2)`, stack, orderID))
	return n == 1, err
}

func changes(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}
