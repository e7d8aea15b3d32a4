package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/oncemill/oncemill/producer"
)

// books is what came of one stack, since the first start on its directory. What is marked with + is counted since this start.
type books struct {
	Orders            int `json:"orders"`
	Deliveries        int `json:"deliveries"`
	Runs              int `json:"runs"`
	Duplicates        int `json:"duplicates"`        // deliveries of an order beyond its first
	DuplicatesBusy    int `json:"duplicates_busy"`   // guarded+: while another copy was in progress, or its retry not due
	DuplicatesDone    int `json:"duplicates_done"`   // guarded+: answered with a stored success
	PublishedByCopies int `json:"published_by_copy"` // guarded+: outputs of an earlier run, published by a redelivery
	FailuresReplayed  int `json:"failures_replayed"` // guarded+: answered with a stored failure
	Mismatches        int `json:"mismatches"`        // guarded: known ID, other content
	DeadLetters       int `json:"dead_letters"`      //
	DoubleCharges     int `json:"double_charges"`    // charges beyond one an order
	LostOrders        int `json:"lost_orders"`       // neither charged nor dead-lettered
	WrongAmounts      int `json:"wrong_amounts"`     // orders with a charge of another amount than their own
	CentsDue          int `json:"cents_due"`         // the amounts of all orders but those that were dead-lettered instead of charged
	CentsCharged      int `json:"cents_charged"`     // the amounts of all charges
	ExplainedCharges  int `json:"explained_charges"` // guarded: double charges after an injected death
	explanations      []string
}

// balance reports whether every order was charged once and with its amount, or dead-lettered.
func (b books) balance() bool {
	return b.DoubleCharges == 0 && b.LostOrders == 0 && b.WrongAmounts == 0 && b.CentsCharged == b.CentsDue
}

// closeBooks reads a stack's ledger.
func closeBooks(ctx context.Context, s *stack, b *broker, orders []plannedOrder, counts map[string]int) (books, error) {
	out := books{Orders: len(orders)}
	for name, field := range map[string]*int{"deliveries": &out.Deliveries, "runs": &out.Runs, "duplicates": &out.Duplicates} {
		n, err := s.shop.counter(ctx, s.name, name)
		if err != nil {
			return out, err
		}
		*field = n
	}
	charges, err := s.charges(ctx)
	if err != nil {
		return out, err
	}
	letters, err := b.deadLetters(ctx, s.name)
	if err != nil {
		return out, err
	}
	dead := map[string]bool{}
	for _, m := range letters {
		id := m.Headers().Get(producer.HeaderOriginalID)
		if id == "" { // a poison queue keeps the ID
			id = m.Headers().Get(producer.HeaderID)
		}
		dead[id] = true
		if m.Headers().Get(producer.HeaderOutcome) == "mismatch" {
			out.Mismatches++
		}
	}
	out.DeadLetters = len(letters)
	for _, o := range orders {
		out.add(o.order, charges[o.ID], dead[o.ID])
		if charges[o.ID].n > 1 && s.death != nil {
			out.explain(s.death, o.ID)
		}
		delete(charges, o.ID)
	}
	for _, unasked := range charges { // nobody placed such an order
		out.DoubleCharges += unasked.n
		out.CentsCharged += unasked.cents
	}
	out.DuplicatesBusy = counts["duplicate_in_progress"] + counts["not_due"]
	out.DuplicatesDone = counts["duplicate_completed"]
	out.FailuresReplayed = counts["duplicate_failed"]
	out.PublishedByCopies = counts["publish_only"]
	return out, nil
}

// add enters what became of an order.
func (b *books) add(o order, c charged, dead bool) {
	b.DoubleCharges += max(0, c.n-1)
	b.CentsCharged += c.cents
	if c.n > 0 && (c.least != o.Amount || c.most != o.Amount) {
		b.WrongAmounts++
	}
	if c.n > 0 || !dead {
		b.CentsDue += o.Amount
	}
	if c.n == 0 && !dead {
		b.LostOrders++
	}
}

func (b *books) explain(m *mortality, orderID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if why, ok := m.kills[orderID]; ok {
		b.ExplainedCharges++
		b.explanations = append(b.explanations, fmt.Sprintf("%s was %s, and charged again by the next attempt", orderID, why))
	}
}

// charged is what an order was charged: how often, how much in all, and the smallest and the largest amount.
type charged struct{ n, cents, least, most int }

// charges sums up a stack's charges by order.
func (s *stack) charges(ctx context.Context) (charges map[string]charged, err error) {
	rows, err := s.shop.db.QueryContext(ctx, `SELECT order_id, count(*), sum(amount), min(amount), max(amount) FROM ledger WHERE stack = ? GROUP BY order_id`, s.name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	charges = map[string]charged{}
	for rows.Next() {
		var id string
		var c charged
		if err := rows.Scan(&id, &c.n, &c.cents, &c.least, &c.most); err != nil {
			return nil, err
		}
		charges[id] = c
	}
	return charges, rows.Err()
}

// printJSON prints the books for programs.
func printJSON(w io.Writer, all map[string]books) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}

// euros writes cents as people do.
func euros(cents int) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

// table shows the books to people. resumed: an earlier start worked on the same directory.
func table(all map[string]books, resumed bool) string {
	g, u, d := all[guarded], all[unguarded], all[deduplicator]
	var out strings.Builder
	line := func(name string, g, u, d any) { fmt.Fprintf(&out, "  %-34s %10v %11v %14v\n", name, g, u, d) }
	out.WriteString("\n")
	line("", "oncemill", "unguarded", "Deduplicator*")
	line("orders", g.Orders, u.Orders, d.Orders)
	line("deliveries", g.Deliveries, u.Deliveries, d.Deliveries)
	line("handler runs", g.Runs, u.Runs, d.Runs)
	line("duplicates delivered", g.Duplicates, u.Duplicates, d.Duplicates)
	line("  answered with the outcome", g.DuplicatesDone, "-", "-")
	line("  held or delayed, in progress", g.DuplicatesBusy, "-", "-")
	line("  published what a run left behind", g.PublishedByCopies, "-", "-")
	line("  failures replayed", g.FailuresReplayed, "-", "-")
	line("mismatches (same ID, other amount)", g.Mismatches, "-", "-")
	line("dead letters", g.DeadLetters, u.DeadLetters, d.DeadLetters)
	line("DOUBLE CHARGES", g.DoubleCharges, u.DoubleCharges, d.DoubleCharges)
	line("LOST ORDERS", g.LostOrders, u.LostOrders, d.LostOrders)
	line("WRONG AMOUNTS", g.WrongAmounts, u.WrongAmounts, d.WrongAmounts)
	line("due", euros(g.CentsDue), euros(u.CentsDue), euros(d.CentsDue))
	line("charged", euros(g.CentsCharged), euros(u.CentsCharged), euros(d.CentsCharged))
	out.WriteString(`
  * Watermill's own middleware, keyed by message ID. It marks a message before its handler runs, so a
    handler that fails once has its redelivery dropped as a duplicate.

`)
	if resumed {
		out.WriteString("  This directory was worked on before. The indented lines count since this start, all others since the first.\n\n")
	}
	out.WriteString(g.verdict())
	return out.String()
}

func (b books) verdict() string {
	if b.balance() {
		return fmt.Sprintf("oncemill's ledger balances: every order was charged once, %s in all, or dead-lettered for somebody to look at.\n", euros(b.CentsCharged))
	}
	s := fmt.Sprintf("oncemill's ledger does not balance: %d double charges, %d lost orders, %d wrong amounts, %s charged of %s due.\n",
		b.DoubleCharges, b.LostOrders, b.WrongAmounts, euros(b.CentsCharged), euros(b.CentsDue))
	if b.ExplainedCharges == 0 {
		return s
	}
	return s + fmt.Sprintf(`%d of the double charges follow an injected death between effect and outcome:
  %s
This is the limit of tier 1: the charge and its outcome are written to two places, and a process can die in
between. Nothing but a common transaction (tier 2) or an ID that the payment provider deduplicates by
(oncemill.FromContext(ctx).ID("charge")) closes that gap. docs/guarantees.md has the whole list.
`, b.ExplainedCharges, strings.Join(b.explanations[:min(3, len(b.explanations))], "\n  "))
}
