package main

import (
	"context"
	"database/sql"
	"maps"
	"net/http"
	"slices"

	"github.com/oncemill/oncemill/examples/internal/postgres"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

// A database keeps payments, the ledger, the outbox and the inbox, in PostgreSQL or SQLite.
type database struct{ *shop.Database }

// tables are the example's own, in the words of both databases. No unique index in them would notice a second booking:
// that is the inbox's work.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS payments (
		id text PRIMARY KEY, account text NOT NULL, merchant text NOT NULL, cents bigint NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS entries (payment text NOT NULL, account text NOT NULL, cents bigint NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, cents bigint NOT NULL)`,
}

// openDatabase opens the database of the flags. Without tables to make, as for consumers, it may be away.
func openDatabase(ctx context.Context, o options, tables ...string) (*database, error) {
	if o.SQLite != "" {
		db, err := shop.OpenSQLite(ctx, o.SQLite, tables...)
		return &database{db}, err
	}
	db, err := postgres.Open(ctx, o.Postgres, "oncemill_"+o.Run, tables...)
	return &database{db}, err
}

// errOther says that a payment's ID belongs to one that differs. Asking again is useless.
var errOther = shop.Refusal{Status: http.StatusConflict, Text: "the ID belongs to a payment that differs"}

// place writes a payment and its event, both or neither. It reports false for a payment that is there already. After an
// error other than errOther, whoever wants to pay has to ask again.
func (d *database) place(ctx context.Context, p payment, topic string) (placed bool, err error) {
	tx, err := d.SQL.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	if placed, err = insertPayment(ctx, tx, p); err != nil || !placed {
		return false, err
	}
	if err := d.Box.InSQL(tx).Publish(ctx, p.event(topic)); err != nil {
		return false, err
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	d.Box.Wake() // a relay of this process publishes now what was committed
	return true, nil
}

// insertPayment waits for others who are placing the same payment, and reports false if they did.
func insertPayment(ctx context.Context, tx *sql.Tx, p payment) (inserted bool, err error) {
	const insert = `INSERT INTO payments (id, account, merchant, cents) VALUES ($1, $2, $3, $4)
		ON CONFLICT (id) DO NOTHING`
	result, err := tx.ExecContext(ctx, insert, p.ID, p.Account, p.Merchant, p.Cents)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err == nil, err
	}
	there := payment{ID: p.ID}
	err = tx.QueryRowContext(ctx, `SELECT account, merchant, cents FROM payments WHERE id = $1`, p.ID).
		Scan(&there.Account, &there.Merchant, &there.Cents)
	if err == nil && there != p {
		err = errOther
	}
	return false, err
}

// book writes the ledger, in the transaction that ctx carries.
func (d *database) book(ctx context.Context, payments []payment) error {
	cents := map[string]int64{}
	for _, p := range payments {
		cents[p.Account], cents[p.Merchant] = cents[p.Account]-p.Cents, cents[p.Merchant]+p.Cents
		err := d.Exec(ctx, `INSERT INTO entries (payment, account, cents) VALUES ($1, $2, $3), ($1, $4, $5)`,
			p.ID, p.Account, -p.Cents, p.Merchant, p.Cents)
		if err != nil {
			return err
		}
	}
	for _, account := range slices.Sorted(maps.Keys(cents)) { // in one order, against deadlocks
		err := d.Exec(ctx, `INSERT INTO balances (account, cents) VALUES ($1, $2)
			ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`, account, cents[account])
		if err != nil {
			return err
		}
	}
	return nil
}

// facts are all rows of the example's tables that are committed, as text.
func (d *database) facts(ctx context.Context) (facts []string, err error) {
	rows, err := d.SQL.QueryContext(ctx, `
		SELECT 'payment ' || id || ' ' || account || ' ' || merchant || ' ' || cents FROM payments
		UNION ALL SELECT 'entry ' || payment || ' ' || account || ' ' || cents FROM entries
		UNION ALL SELECT 'balance ' || account || ' ' || cents FROM balances`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var fact string
		if err := rows.Scan(&fact); err != nil {
			return nil, err
		}
		facts = append(facts, fact)
	}
	return facts, rows.Err()
}
