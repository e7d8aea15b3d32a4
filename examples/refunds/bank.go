package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// errClosed says that a payment was refused, and certainly not made.
var errClosed = errors.New("the voucher service is closed at night")

// A bank pays, and remembers keys. It stands in for somebody else's service, which several processes call.
type bank struct{ db *sql.DB }

const bankSchema = `
CREATE TABLE IF NOT EXISTS payments (
	number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE,
	customer_order TEXT NOT NULL, part TEXT NOT NULL, cents INTEGER NOT NULL
);
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
	_, err = tx.ExecContext(ctx,
		`INSERT INTO payments (key, customer_order, part, cents) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING`,
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

// Books are what came of the tickets.
type Books struct {
	Tickets  int
	Calls    int // of the tool, by models; without the repetitions of agents in processes of their own
	Busy     int // answered with: another agent is at it
	Later    int // answered with: not all is refunded
	Deaths   int // of processes, after a payment and before its outcome was stored
	Requests int // to the bank
	Refused  int // of these
	Payments int // that the bank made
	Due      int // that it had to make
	Double   int // payments beyond one for each part of an order
	Missing  int // parts that were not paid back
	Wrong    int // payments of another amount, or that nobody asked for
}

// Balance reports whether each part of each order was paid back once.
func (b Books) Balance() bool {
	return b.Double == 0 && b.Missing == 0 && b.Wrong == 0 && b.Payments == b.Due
}

// String prints the books for people.
func (b Books) String() string {
	verdict := "Each part of each order was paid back once."
	if !b.Balance() {
		verdict = "THE BOOKS DO NOT BALANCE."
	}
	return fmt.Sprintf(`
%d tickets: the tool was called %d times; %d times another agent was at it, %d times a part was left
%d agents were killed after a payment, before anybody knew of it
the bank got %d requests, refused %d, knew %d again by their key, and made %d payments of %d
double %d, missing %d, wrong %d
%s
`, b.Tickets, b.Calls, b.Busy, b.Later, b.Deaths,
		b.Requests, b.Refused, b.Requests-b.Refused-b.Payments, b.Payments, b.Due,
		b.Double, b.Missing, b.Wrong, verdict)
}

func closeBooks(ctx context.Context, tickets []ticket, b *bank, o *office) (Books, error) {
	out := Books{
		Tickets: len(tickets), Calls: int(o.calls.Load()), Busy: int(o.busy.Load()),
		Later: int(o.later.Load()), Deaths: int(o.deaths.Load()),
	}
	err := b.db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(refused), 0) FROM requests`).
		Scan(&out.Requests, &out.Refused)
	if err != nil {
		return out, err
	}
	paid, err := b.payments(ctx)
	if err != nil {
		return out, err
	}
	for _, payments := range paid {
		out.Payments += len(payments)
	}
	for _, t := range tickets {
		for _, p := range t.Parts {
			got := paid[t.Order+" "+p.Part]
			delete(paid, t.Order+" "+p.Part)
			out.Due++
			out.Double += max(0, len(got)-1)
			if len(got) == 0 {
				out.Missing++
			}
			for _, cents := range got {
				if cents != p.Cents {
					out.Wrong++
				}
			}
		}
	}
	for _, payments := range paid {
		out.Wrong += len(payments)
	}
	return out, nil
}
