package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// A report is the books of all stacks.
type report map[string]books

// books are what came of one stack, since the first start on its directory. A + marks what is counted since this start.
type books struct {
	Orders            int
	Deliveries        int
	Runs              int
	Duplicates        int // deliveries of an order beyond its first
	DuplicatesBusy    int // guarded+: while another copy was in progress, or its retry not due
	DuplicatesDone    int // guarded+: answered with a stored success
	PublishedByCopies int // guarded+: outputs of an earlier run, published by a redelivery
	FailuresReplayed  int // guarded+: answered with a stored failure
	Mismatches        int // guarded: known ID, other content
	DeadLetters       int
	DoubleCharges     int // charges beyond one an order
	LostOrders        int // neither charged nor dead-lettered
	WrongAmounts      int // charges of another amount than their order's
	Explained         []string
}

// balance reports whether every order was charged once and with its amount, or dead-lettered.
func (b books) balance() bool {
	return b.DoubleCharges == 0 && b.LostOrders == 0 && b.WrongAmounts == 0
}

// add enters an order that was charged so many times, some of them with another amount than its own.
func (b *books) add(charges, wrong int, dead bool) {
	b.Orders++
	b.DoubleCharges += max(0, charges-1)
	b.WrongAmounts += wrong
	if charges == 0 && !dead {
		b.LostOrders++
	}
}

// closeBooks compares each stack's ledger with the orders and the dead letters.
func closeBooks(
	ctx context.Context, s *store, b *broker, fates map[string]fault, claims map[string]int,
) (report, error) {
	all := report{}
	for _, name := range stacks {
		out, err := closeStack(ctx, s, b, name, fates)
		if err != nil {
			return nil, fmt.Errorf("close the books of %s: %w", name, err)
		}
		if name == guarded {
			out.DuplicatesBusy = claims["duplicate_in_progress"] + claims["not_due"]
			out.DuplicatesDone = claims["duplicate_completed"]
			out.FailuresReplayed = claims["duplicate_failed"]
			out.PublishedByCopies = claims["publish_only"]
		}
		all[name] = out
	}
	return all, nil
}

func closeStack(ctx context.Context, s *store, b *broker, name string, fates map[string]fault) (out books, err error) {
	deadLetters, err := shop.Messages(ctx, b.js, b.names.stream(), b.names.dead(name))
	if err != nil {
		return out, err
	}
	dead := map[string]bool{}
	for _, m := range deadLetters {
		dead[m.Headers().Get(producer.HeaderOriginalID)] = true
		dead[m.Headers().Get(producer.HeaderID)] = true // a poison queue keeps the ID
		if m.Headers().Get(producer.HeaderOutcome) == "mismatch" {
			out.Mismatches++
		}
	}
	out.DeadLetters = len(deadLetters)

	rows, err := s.db.QueryContext(ctx, `
		SELECT o.id, count(l.entry), count(nullif(l.amount, o.amount))
		FROM orders o LEFT JOIN ledger l ON l.stack = ? AND l.order_id = o.id GROUP BY o.id`, name)
	if err != nil {
		return out, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var charges, wrong int
		if err := rows.Scan(&id, &charges, &wrong); err != nil {
			return out, err
		}
		out.add(charges, wrong, dead[id])
		if charges > 1 && name == guarded && fates[id] == diesAfterWrite {
			out.Explained = append(out.Explained, id)
		}
	}
	if err := rows.Err(); err != nil {
		return out, err
	}
	var unasked int // charges of what nobody has ordered
	err = s.db.QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM log WHERE stack = ?1 AND event = 'delivery'),
		(SELECT count(DISTINCT order_id) FROM log WHERE stack = ?1 AND event = 'delivery'),
		(SELECT count(*) FROM log WHERE stack = ?1 AND event = 'run'),
		(SELECT count(*) FROM ledger WHERE stack = ?1 AND order_id NOT IN (SELECT id FROM orders))`,
		name).Scan(&out.Deliveries, &out.Duplicates, &out.Runs, &unasked)
	out.Duplicates = out.Deliveries - out.Duplicates
	out.DoubleCharges += unasked
	return out, err
}

// table shows the books to people.
func (r report) table() string {
	var out strings.Builder
	line := func(name string, of ...any) {
		fmt.Fprintf(&out, "  %-34s %10v %11v %14v\n", append([]any{name}, of...)...)
	}
	all := func(name string, count func(books) int) {
		line(name, count(r[guarded]), count(r[unguarded]), count(r[deduplicator]))
	}
	onlyGuard := func(name string, count int) { line(name, count, "-", "-") }
	out.WriteString("\n")
	g := r[guarded]
	line("", "oncemill", "unguarded", "Deduplicator*")
	all("orders", func(b books) int { return b.Orders })
	all("deliveries", func(b books) int { return b.Deliveries })
	all("handler runs", func(b books) int { return b.Runs })
	all("duplicates delivered", func(b books) int { return b.Duplicates })
	onlyGuard("  answered with the outcome", g.DuplicatesDone)
	onlyGuard("  held or delayed, in progress", g.DuplicatesBusy)
	onlyGuard("  published what a run left behind", g.PublishedByCopies)
	onlyGuard("  failures replayed", g.FailuresReplayed)
	onlyGuard("mismatches (same ID, other amount)", g.Mismatches)
	all("dead letters", func(b books) int { return b.DeadLetters })
	all("DOUBLE CHARGES", func(b books) int { return b.DoubleCharges })
	all("LOST ORDERS", func(b books) int { return b.LostOrders })
	all("WRONG AMOUNTS", func(b books) int { return b.WrongAmounts })
	out.WriteString(`
  * Watermill's own middleware, keyed by message ID. It marks a message before its handler runs, so a
    handler that fails once has its redelivery dropped as a duplicate.

`)
	out.WriteString(g.verdict())
	return out.String()
}

func (b books) verdict() string {
	if b.balance() {
		return fmt.Sprintf("oncemill's ledger balances: each order is charged once; %d dead letters to look at.\n",
			b.DeadLetters)
	}
	s := fmt.Sprintf("oncemill's ledger does not balance: %d double charges, %d lost orders, %d wrong amounts.\n",
		b.DoubleCharges, b.LostOrders, b.WrongAmounts)
	if b.Explained == nil {
		return s
	}
	return s + fmt.Sprintf(`%d of the double charges follow an injected death between effect and outcome, as that of %s.
This is the limit of tier 1: the charge and its outcome are written to two places, and a process can die in
between. Nothing but a common transaction (tier 2) or an ID that the payment provider deduplicates by
(oncemill.FromContext(ctx).ID("charge")) closes that gap. docs/guarantees.md has the whole list.
`, len(b.Explained), b.Explained[0])
}
