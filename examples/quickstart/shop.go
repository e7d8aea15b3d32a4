package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A shop takes orders and keeps the ledgers, in one SQLite file.
type shop struct {
	names   names
	db      *sql.DB
	box     *sqliteoutbox.Outbox
	resumed bool // an earlier start worked on it
}

const schema = `
CREATE TABLE IF NOT EXISTS run (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount INTEGER NOT NULL);
-- One row for each charge that a customer would see on the card. No unique key: the ledger is the outside world here.
CREATE TABLE IF NOT EXISTS ledger (
	entry INTEGER PRIMARY KEY AUTOINCREMENT,
	stack TEXT NOT NULL, order_id TEXT NOT NULL, amount INTEGER NOT NULL, pid INTEGER NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS ledger_by_order ON ledger (stack, order_id);
-- When a run of the guarded handler had its outcome stored: what the crash test compares double charges with.
CREATE TABLE IF NOT EXISTS settled (entry INTEGER PRIMARY KEY, at INTEGER NOT NULL);
-- The faults that have been injected, so that a restarted process does not inject them again.
CREATE TABLE IF NOT EXISTS injected (stack TEXT NOT NULL, order_id TEXT NOT NULL, PRIMARY KEY (stack, order_id));
-- What each stack has seen and done, across restarts.
CREATE TABLE IF NOT EXISTS counters (stack TEXT NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (stack, name));
CREATE TABLE IF NOT EXISTS seen (stack TEXT NOT NULL, order_id TEXT NOT NULL, PRIMARY KEY (stack, order_id));
`

func openShop(ctx context.Context, dir string) (*shop, error) {
	db, err := sqliteoutbox.Open(ctx, filepath.Join(dir, "shop.db"))
	if err != nil {
		return nil, fmt.Errorf("open the shop's database: %w", err)
	}
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err == nil {
		err = box.Migrate(ctx)
	}
	if err == nil {
		_, err = db.ExecContext(ctx, schema)
	}
	s := &shop{db: db, box: box}
	first := false
	if err == nil {
		first, err = s.insertNew(ctx, `INSERT INTO run VALUES (1, lower(hex(randomblob(4)))) ON CONFLICT DO NOTHING`)
	}
	if err == nil {
		err = db.QueryRowContext(ctx, `SELECT name FROM run`).Scan(&s.names.run)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up the shop's database: %w", err), db.Close())
	}
	s.resumed = !first
	return s, nil
}

// hasOnly returns an error if an earlier start has placed other orders than these, whose charges the books would take for double ones.
func (s *shop) hasOnly(ctx context.Context, orders []plannedOrder) error {
	amounts := map[string]int{}
	for _, o := range orders {
		amounts[o.ID] = o.Amount
	}
	rows, err := s.db.QueryContext(ctx, `SELECT id, amount FROM orders`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var o order
		if err := rows.Scan(&o.ID, &o.Amount); err != nil {
			return err
		}
		if amounts[o.ID] != o.Amount {
			return errors.New("-dir has orders of another -seed, or more than -orders: go on with the flags of the earlier start")
		}
	}
	return rows.Err()
}

// place writes an order and its event in one transaction. The customer may press the button twice.
func (s *shop) place(ctx context.Context, o order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return s.inTx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO orders (id, amount) VALUES (?, ?) ON CONFLICT DO NOTHING`, o.ID, o.Amount)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err
		}
		return s.box.InSQL(tx).Publish(ctx, producer.Message{ID: o.ID, Topic: s.names.orders(), Key: o.ID, Payload: body})
	})
}

func (s *shop) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// charge writes a charge and returns its entry in the ledger.
func (s *shop) charge(ctx context.Context, stack string, o order, now int64) (entry int64, err error) {
	res, err := s.db.ExecContext(ctx, `INSERT INTO ledger (stack, order_id, amount, pid, at) VALUES (?, ?, ?, ?, ?)`, stack, o.ID, o.Amount, os.Getpid(), now)
	if err != nil {
		return 0, fmt.Errorf("write the ledger: %w", err)
	}
	return res.LastInsertId()
}

// once reports whether a fault has not been injected before, and notes that it is now.
func (s *shop) once(ctx context.Context, stack, orderID string) (bool, error) {
	return s.insertNew(ctx, `INSERT INTO injected (stack, order_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, stack, orderID)
}

// firstSeen reports whether a stack has not been given an order before, and notes that it has now.
func (s *shop) firstSeen(ctx context.Context, stack, orderID string) (bool, error) {
	return s.insertNew(ctx, `INSERT INTO seen (stack, order_id) VALUES (?, ?) ON CONFLICT DO NOTHING`, stack, orderID)
}

func (s *shop) insertNew(ctx context.Context, query string, args ...any) (bool, error) {
	res, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func (s *shop) count(ctx context.Context, stack, name string) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO counters (stack, name, n) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1`, stack, name)
	return err
}

func (s *shop) counter(ctx context.Context, stack, name string) (n int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT coalesce(sum(n), 0) FROM counters WHERE stack = ? AND name = ?`, stack, name).Scan(&n)
	return n, err
}
