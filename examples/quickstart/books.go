package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/producer"
)

// A report is the books of all stacks.
type report map[string]books

// books are what came of one stack, since the first start on its directory. What is marked with + is counted since this
// start.
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
	CentsDue          int // the amounts of all orders but those that were dead-lettered instead of charged
	CentsCharged      int // the amounts of all charges
	Explained         []string
}

// balance reports whether every order was charged once and with its amount, or dead-lettered.
func (b books) balance() bool {
	return b.DoubleCharges == 0 && b.LostOrders == 0 && b.WrongAmounts == 0 && b.CentsCharged == b.CentsDue
}

// charged is what an order was charged.
type charged struct{ n, cents, wrong int }

// add enters what became of an order.
func (b *books) add(o order, c charged, dead bool) {
	b.Orders++
	b.DoubleCharges += max(0, c.n-1)
	b.CentsCharged += c.cents
	b.WrongAmounts += c.wrong
	if c.n > 0 || !dead {
		b.CentsDue += o.Amount
	}
	if c.n == 0 && !dead {
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
	letters, err := b.deadLetters(ctx, name)
	if err != nil {
		return out, err
	}
	dead := map[string]bool{}
	for _, m := range letters {
		dead[m.Headers().Get(producer.HeaderOriginalID)] = true
		dead[m.Headers().Get(producer.HeaderID)] = true // a poison queue keeps the ID
		if m.Headers().Get(producer.HeaderOutcome) == "mismatch" {
			out.Mismatches++
		}
	}
	out.DeadLetters = len(letters)

	rows, err := s.db.QueryContext(ctx, `
		SELECT o.id, o.amount, count(l.entry), coalesce(sum(l.amount), 0), count(nullif(l.amount, o.amount))
		FROM orders o LEFT JOIN ledger l ON l.stack = ? AND l.order_id = o.id GROUP BY o.id`, name)
	if err != nil {
		return out, err
	}
	defer rows.Close()
	for rows.Next() {
		var o order
		var c charged
		if err := rows.Scan(&o.ID, &o.Amount, &c.n, &c.cents, &c.wrong); err != nil {
			return out, err
		}
		out.add(o, c, dead[o.ID])
		if c.n > 1 && name == guarded && fates[o.ID] == diesAfterWrite {
			out.Explained = append(out.Explained, o.ID)
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

// euros writes cents as people do.
func euros(cents int) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// table shows the books to people.
func (r report) table() string {
	names := []string{
		"orders", "deliveries", "handler runs", "duplicates delivered", "  answered with the outcome",
		"  held or delayed, in progress", "  published what a run left behind", "  failures replayed",
		"mismatches (same ID, other amount)", "dead letters", "DOUBLE CHARGES", "LOST ORDERS", "WRONG AMOUNTS",
		"due", "charged",
	}
	var out strings.Builder
	line := func(name string, of ...any) {
		fmt.Fprintf(&out, "  %-34s %10v %11v %14v\n", append([]any{name}, of...)...)
	}
	out.WriteString("\n")
	line("", "oncemill", "unguarded", "Deduplicator*")
	for i, name := range names {
		if strings.HasPrefix(name, " ") || strings.HasPrefix(name, "mismatches") { // only the guard knows
			line(name, r[guarded].column()[i], "-", "-")
		} else {
			line(name, r[guarded].column()[i], r[unguarded].column()[i], r[deduplicator].column()[i])
		}
	}
	out.WriteString(`
  * Watermill's own middleware, keyed by message ID. It marks a message before its handler runs, so a
    handler that fails once has its redelivery dropped as a duplicate.

`)
	out.WriteString(r[guarded].verdict())
	return out.String()
}

// column is what the table shows of one stack.
func (b books) column() []any {
	return []any{
		b.Orders, b.Deliveries, b.Runs, b.Duplicates, b.DuplicatesDone, b.DuplicatesBusy, b.PublishedByCopies,
		b.FailuresReplayed, b.Mismatches, b.DeadLetters, b.DoubleCharges, b.LostOrders, b.WrongAmounts,
		euros(b.CentsDue), euros(b.CentsCharged),
	}
}

func (b books) verdict() string {
	if b.balance() {
		return fmt.Sprintf("oncemill's ledger balances: %s charged, each order once; %d dead letters to look at.\n",
			euros(b.CentsCharged), b.DeadLetters)
	}
	s := fmt.Sprintf("oncemill's ledger does not balance: "+
		"%d double charges, %d lost orders, %d wrong amounts, %s charged of %s due.\n",
		b.DoubleCharges, b.LostOrders, b.WrongAmounts, euros(b.CentsCharged), euros(b.CentsDue))
	if b.Explained == nil {
		return s
	}
	return s + fmt.Sprintf(`%d of the double charges follow an injected death between effect and outcome, as that of %s.
This is the limit of tier 1: the charge and its outcome are written to two places, and a process can die in
between. Nothing but a common transaction (tier 2) or an ID that the payment provider deduplicates by
(oncemill.FromContext(ctx).ID("charge")) closes that gap. docs/guarantees.md has the whole list.
`, len(b.Explained), b.Explained[0])
}
