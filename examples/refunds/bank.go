package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"

	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// errClosed says that a payment was refused, and certainly not made.
var errClosed = errors.New("the voucher service is closed at night")

// A bank pays, and remembers keys. It stands in for somebody else's service, which several processes call.
type bank struct{ db *sql.DB }

const bankSchema = `
CREATE TABLE IF NOT EXISTS payments (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, customer_order TEXT NOT NULL, part TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS requests (number INTEGER PRIMARY KEY, refused INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS hours (open INTEGER NOT NULL);`

func openBank(ctx context.Context, dir string) (*bank, error) {
	db, err := sqliteoutbox.Open(ctx, filepath.Join(dir, "bank.db"))
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, bankSchema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &bank{db}, nil
}

// open is the morning.
func (b *bank) open(ctx context.Context) error {
	_, err := b.db.ExecContext(ctx, `INSERT INTO hours (open) VALUES (1)`)
	return err
}

// pay pays once for each key.
func (b *bank) pay(ctx context.Context, key, order string, p payment) (number int, err error) {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	var open bool
	if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM hours)`).Scan(&open); err != nil {
		return 0, err
	}
	closed := p.Part == voucher && !open
	if _, err := tx.ExecContext(ctx, `INSERT INTO requests (refused) VALUES (?)`, closed); err != nil {
		return 0, err
	}
	if closed {
		return 0, errors.Join(errClosed, tx.Commit())
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO payments (key, customer_order, part, cents) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING`,
		key, order, p.Part, p.Cents)
	if err != nil {
		return 0, err
	}
	if err := tx.QueryRowContext(ctx, `SELECT number FROM payments WHERE key = ?`, key).Scan(&number); err != nil {
		return 0, err
	}
	return number, tx.Commit()
}

// payments returns what was paid, by order and part.
func (b *bank) payments(ctx context.Context) (map[string][]int, error) {
	rows, err := b.db.QueryContext(ctx, `SELECT customer_order, part, cents FROM payments`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	paid := map[string][]int{}
	for rows.Next() {
		var order, part string
		var cents int
		if err := rows.Scan(&order, &part, &cents); err != nil {
			return nil, err
		}
		paid[order+" "+part] = append(paid[order+" "+part], cents)
	}
	return paid, rows.Err()
}

// requests returns how many there were, and how many of them were refused.
func (b *bank) requests(ctx context.Context) (all, refused int, err error) {
	err = b.db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(refused), 0) FROM requests`).Scan(&all, &refused)
	return all, refused, err
}
