package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"net/http"
	"slices"

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
	db, err := shop.OpenPostgres(ctx, o.Postgres, "oncemill_"+o.Run, tables...)
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
func (d *database) book(ctx context.Context, p payment) error {
	lines := []entry{{p.ID, p.Account, -p.Cents}, {p.ID, p.Merchant, p.Cents}}
	slices.SortFunc(lines, func(a, b entry) int { return cmp.Compare(a.account, b.account) }) // against deadlocks
	for _, e := range lines {
		err := d.Exec(ctx, `INSERT INTO entries (payment, account, cents) VALUES ($1, $2, $3)`,
			e.payment, e.account, e.cents)
		if err != nil {
			return err
		}
		err = d.Exec(ctx, `INSERT INTO balances (account, cents) VALUES ($1, $2)
			ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`, e.account, e.cents)
		if err != nil {
			return err
		}
	}
	return nil
}

// A ledger is what the books are made from.
type ledger struct {
	payments map[string]payment // by ID
	entries  []entry
	balances map[string]int64 // by account
}

// An entry is one line of the double-entry ledger.
type entry struct {
	payment, account string
	cents            int64
}

// ledger returns everything that is committed. Nobody writes any more.
func (d *database) ledger(ctx context.Context) (*ledger, error) {
	l := &ledger{payments: map[string]payment{}, balances: map[string]int64{}}
	var p payment
	var e entry
	var account string
	var cents int64
	return l, errors.Join(
		d.each(ctx, `SELECT id, account, merchant, cents FROM payments`,
			[]any{&p.ID, &p.Account, &p.Merchant, &p.Cents}, func() { l.payments[p.ID] = p }),
		d.each(ctx, `SELECT payment, account, cents FROM entries`,
			[]any{&e.payment, &e.account, &e.cents}, func() { l.entries = append(l.entries, e) }),
		d.each(ctx, `SELECT account, cents FROM balances`,
			[]any{&account, &cents}, func() { l.balances[account] = cents }),
	)
}

func (d *database) each(ctx context.Context, query string, into []any, do func()) error {
	rows, err := d.SQL.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		do()
	}
	return rows.Err()
}
