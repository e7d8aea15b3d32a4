package main

import (
	"context"
	"database/sql"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/examples/internal/mysql"
	"github.com/oncemill/oncemill/examples/internal/postgres"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

// A database keeps payments, the ledger, the outbox and the inbox, in PostgreSQL, MySQL or SQLite.
type database struct {
	*shop.Database
	words *strings.Replacer // make a statement one of this database; nil: it is one
}

// mysqlWords are MySQL's for those of the statements below. It counts arguments in the order in which they stand.
var mysqlWords = strings.NewReplacer("$1", "?", "$2", "?", "$3", "?", "$4", "?", "$5", "?", "$6", "?",
	"ON CONFLICT (id) DO NOTHING", "ON DUPLICATE KEY UPDATE id = id",
	"ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents",
	"ON DUPLICATE KEY UPDATE cents = cents + VALUES(cents)")

// say says a statement in the words of the database.
func (d *database) say(statement string) string {
	if d.words == nil {
		return statement
	}
	return d.words.Replace(statement)
}

// tables are the example's own, in the words of all databases. No unique index in them would notice a second booking:
// that is the inbox's work.
var tables = []string{
	`CREATE TABLE IF NOT EXISTS payments (
		id varchar(64) PRIMARY KEY, account varchar(64) NOT NULL, merchant varchar(64) NOT NULL,
		cents bigint NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS entries (
		payment varchar(64) NOT NULL, account varchar(64) NOT NULL, cents bigint NOT NULL)`,
	`CREATE TABLE IF NOT EXISTS balances (account varchar(64) PRIMARY KEY, cents bigint NOT NULL)`,
}

// openDatabase opens the database of the flags. Without tables to make, as for consumers, it may be away.
func openDatabase(ctx context.Context, o options, tables ...string) (*database, error) {
	switch {
	case o.SQLite != "":
		db, err := shop.OpenSQLite(ctx, o.SQLite, tables...)
		return &database{db, nil}, err
	case o.MySQL != "":
		db, err := mysql.Open(ctx, o.MySQL, "oncemill_"+o.Run, tables...)
		return &database{db, mysqlWords}, err
	}
	db, err := postgres.Open(ctx, o.Postgres, "oncemill_"+o.Run, tables...)
	return &database{db, nil}, err
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
	if placed, err = d.insertPayment(ctx, tx, p); err != nil || !placed {
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
func (d *database) insertPayment(ctx context.Context, tx *sql.Tx, p payment) (inserted bool, err error) {
	const insert = `INSERT INTO payments (id, account, merchant, cents) VALUES ($1, $2, $3, $4)
		ON CONFLICT (id) DO NOTHING`
	result, err := tx.ExecContext(ctx, d.say(insert), p.ID, p.Account, p.Merchant, p.Cents)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err == nil, err
	}
	there := payment{ID: p.ID}
	err = tx.QueryRowContext(ctx, d.say(`SELECT account, merchant, cents FROM payments WHERE id = $1`), p.ID).
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
		err := d.Exec(ctx, d.say(`INSERT INTO entries (payment, account, cents) VALUES ($1, $2, $3), ($4, $5, $6)`),
			p.ID, p.Account, -p.Cents, p.ID, p.Merchant, p.Cents)
		if err != nil {
			return err
		}
	}
	for _, account := range slices.Sorted(maps.Keys(cents)) { // in one order, against deadlocks
		err := d.Exec(ctx, d.say(`INSERT INTO balances (account, cents) VALUES ($1, $2)
			ON CONFLICT (account) DO UPDATE SET cents = balances.cents + excluded.cents`), account, cents[account])
		if err != nil {
			return err
		}
	}
	return nil
}

// facts are all rows of the example's tables that are committed, as text.
func (d *database) facts(ctx context.Context) (facts []string, err error) {
	rows, err := d.SQL.QueryContext(ctx, `
		SELECT concat_ws(' ', 'payment', id, account, merchant, cents) FROM payments
		UNION ALL SELECT concat_ws(' ', 'entry', payment, account, cents) FROM entries
		UNION ALL SELECT concat_ws(' ', 'balance', account, cents) FROM balances`)
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
