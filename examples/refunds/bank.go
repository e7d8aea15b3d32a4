package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// errClosed says that a payment was refused, and certainly not made.
var errClosed = errors.New("the voucher service is closed at night")

// A bank pays once for each key. It stands in for somebody else's service, which several processes call.
type bank struct {
	db   *sql.DB
	open atomic.Bool // the voucher service
}

func openBank(ctx context.Context, dir string) (*bank, error) {
	db, err := sqliteoutbox.Open(ctx, filepath.Join(dir, "bank.db"))
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS payments (
		number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, customer_order TEXT NOT NULL, part TEXT NOT NULL,
		cents INTEGER NOT NULL, repeated INTEGER NOT NULL DEFAULT 0)`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &bank{db: db}, nil
}

func (b *bank) pay(ctx context.Context, key, order string, p payment) (number int, err error) {
	if p.Part == voucher && !b.open.Load() {
		return 0, errClosed
	}
	err = b.db.QueryRowContext(ctx, `INSERT INTO payments (key, customer_order, part, cents) VALUES (?, ?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET repeated = repeated + 1 RETURNING number`,
		key, order, p.Part, p.Cents).Scan(&number)
	return number, err
}

// payments returns what was paid, by order and part, and how often keys came again.
func (b *bank) payments(ctx context.Context) (paid map[string][]int, repeated int, err error) {
	rows, err := b.db.QueryContext(ctx, `SELECT customer_order, part, cents, repeated FROM payments`)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	paid = map[string][]int{}
	for rows.Next() {
		var order, part string
		var cents, again int
		if err := rows.Scan(&order, &part, &cents, &again); err != nil {
			return nil, 0, err
		}
		paid[order+" "+part] = append(paid[order+" "+part], cents)
		repeated += again
	}
	return paid, repeated, rows.Err()
}

// Books are what came of the tickets.
type Books struct {
	Tickets  int
	Calls    int // of the tool, by models; without those of agents that died
	Again    int // answered with: not now, ask again
	Deaths   int // of processes, after a payment and before its outcome was stored
	Repeated int // payments that the bank knew by their key
	Due      int // payments that it had to make
	Double   int // payments beyond one for each part of an order
	Missing  int // parts that were not paid back
	Wrong    int // payments of another amount, or that nobody asked for
}

// Balance reports whether each part of each order was paid back once.
func (b Books) Balance() bool { return b.Double == 0 && b.Missing == 0 && b.Wrong == 0 }

// String prints the books for people.
func (b Books) String() string {
	verdict := "Each part of each order was paid back once."
	if !b.Balance() {
		verdict = "THE BOOKS DO NOT BALANCE."
	}
	return fmt.Sprintf(`
%d tickets: the tool was called %d times, and said %d times to ask again
%d agents were killed after a payment, before anybody knew of it
the bank had %d payments to make, and knew %d more by their key
double %d, missing %d, wrong %d
%s
`, b.Tickets, b.Calls, b.Again, b.Deaths, b.Due, b.Repeated, b.Double, b.Missing, b.Wrong, verdict)
}

func (o *office) closeBooks(ctx context.Context, tickets []ticket) (Books, error) {
	b := Books{
		Tickets: len(tickets), Calls: int(o.calls.Load()), Again: int(o.again.Load()), Deaths: int(o.deaths.Load()),
	}
	paid, repeated, err := o.tool.bank.payments(ctx)
	b.Repeated = repeated
	for _, t := range tickets {
		for _, p := range t.Parts {
			got := paid[t.Order+" "+p.Part]
			delete(paid, t.Order+" "+p.Part)
			b.Due++
			b.Double += max(0, len(got)-1)
			if len(got) == 0 {
				b.Missing++
			}
			for _, cents := range got {
				if cents != p.Cents {
					b.Wrong++
				}
			}
		}
	}
	for _, payments := range paid {
		b.Wrong += len(payments)
	}
	return b, err
}
