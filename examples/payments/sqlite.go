package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A sqlite is a database in a file, which all processes of the run share.
type sqlite struct {
	db    *sql.DB
	box   *sqliteoutbox.Outbox
	store *sqlitestore.Store
}

// place implements database.
func (s *sqlite) place(ctx context.Context, p payment, topic string) (placed bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback() }() // after the commit it does nothing
	if placed, err = insertPaymentSQL(ctx, tx, p); err != nil || !placed {
		return false, err
	}
	if err := s.box.InSQL(tx).Publish(ctx, p.event(topic)); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

// insertPaymentSQL reports false for a payment that is there already.
func insertPaymentSQL(ctx context.Context, tx *sql.Tx, p payment) (inserted bool, err error) {
	result, err := tx.ExecContext(ctx, `INSERT INTO payments (id, account, merchant, cents) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
		p.ID, p.Account, p.Merchant, p.Cents)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err == nil, err
	}
	there := payment{ID: p.ID}
	err = tx.QueryRowContext(ctx, `SELECT account, merchant, cents FROM payments WHERE id = ?`, p.ID).Scan(&there.Account, &there.Merchant, &there.Cents)
	if err == nil && there != p {
		err = errOther
	}
	return false, err
}

// book implements database. There is nothing in it, and no unique index in its tables, that would notice a second booking:
// that is the inbox's work.
func (s *sqlite) book(ctx context.Context, p payment) error {
	tx := sqlitestore.Tx(ctx)
	for _, line := range []entry{{p.ID, p.Account, -p.Cents}, {p.ID, p.Merchant, p.Cents}} {
		_, err := tx.ExecContext(ctx, `INSERT INTO entries (payment, account, cents) VALUES (?, ?, ?)`, line.payment, line.account, line.cents)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO balances (account, cents) VALUES (?, ?)
			ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents`, line.account, line.cents)
		if err != nil {
			return err
		}
	}
	return nil
}

// publish implements database.
func (s *sqlite) publish(ctx context.Context, m producer.Message) error {
	return s.box.InSQL(sqlitestore.Tx(ctx)).Publish(ctx, m)
}

// openSQLite opens the file, and makes what is missing.
func openSQLite(ctx context.Context, o options) (database, error) {
	db, err := sqliteoutbox.Open(ctx, o.sqlite)
	if err != nil {
		return nil, fmt.Errorf("-sqlite: %w", err)
	}
	s := &sqlite{db: db}
	s.box, err = sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err == nil {
		s.store, err = sqlitestore.New(db, sqlitestore.Config{})
	}
	if err == nil && !o.child {
		err = s.migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("-sqlite %s: %w", o.sqlite, err), db.Close())
	}
	return s, nil
}

func (s *sqlite) migrate(ctx context.Context) error {
	for _, statement := range []string{
		`CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, account TEXT NOT NULL, merchant TEXT NOT NULL, cents INTEGER NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS entries (payment TEXT NOT NULL, account TEXT NOT NULL, cents INTEGER NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL)`,
	} {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if err := errors.Join(s.box.Migrate(ctx), s.store.Migrate(ctx)); err != nil {
		return err
	}
	_, err := s.store.Check(ctx) // whether the server keeps what it confirms
	return err
}

func (s *sqlite) outbox() box                     { return s.box }
func (s *sqlite) inbox() dedupstore.Transactor    { return s.store.Inbox() }
func (s *sqlite) leased() dedupstore.Store        { return s.store }
func (s *sqlite) clean(ctx context.Context) error { return s.store.RunCleaning(ctx) }

// ledger implements database. Nobody writes any more.
func (s *sqlite) ledger(ctx context.Context) (*ledger, error) {
	l := &ledger{payments: map[string]payment{}, balances: map[string]int64{}}
	var p payment
	var e entry
	var account string
	var cents int64
	return l, errors.Join(
		s.eachRow(ctx, `SELECT id, account, merchant, cents FROM payments`, []any{&p.ID, &p.Account, &p.Merchant, &p.Cents}, func() { l.payments[p.ID] = p }),
		s.eachRow(ctx, `SELECT payment, account, cents FROM entries`, []any{&e.payment, &e.account, &e.cents}, func() { l.entries = append(l.entries, e) }),
		s.eachRow(ctx, `SELECT account, cents FROM balances`, []any{&account, &cents}, func() { l.balances[account] = cents }),
	)
}

func (s *sqlite) eachRow(ctx context.Context, query string, into []any, do func()) error {
	rows, err := s.db.QueryContext(ctx, query)
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

// close implements database. The file belongs to whoever named it.
func (s *sqlite) close(context.Context, bool) error { return s.db.Close() }
