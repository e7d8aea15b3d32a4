package main

import (
	"context"
	"fmt"
	"strings"
	"time"

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

	endings map[string]ending // by order
}

// An ending is what came of one order in one stack.
type ending struct {
	Charges, Wrong int // Wrong of them are of another amount
	Dead, Lost     bool
	At             int64 // when it was charged last or lost, in µs
}

// Bad reports whether somebody has to apologise.
func (e ending) Bad() bool { return e.Charges > 1 || e.Wrong > 0 || e.Lost }

func (e ending) String() string {
	switch {
	case e.Wrong > 0:
		return "charged two amounts"
	case e.Charges == 2:
		return "charged twice"
	case e.Charges > 2:
		return fmt.Sprintf("charged %d times", e.Charges)
	case e.Lost:
		return "lost"
	case e.Charges == 1:
		return "charged once"
	case e.Dead:
		return "dead letter"
	}
	return "under way"
}

// balance reports whether every order was charged once and with its amount, or dead-lettered.
func (b books) balance() bool {
	return b.DoubleCharges == 0 && b.LostOrders == 0 && b.WrongAmounts == 0
}

// add enters what came of an order; settled: nothing more will.
func (b *books) add(id string, e ending, settled bool) {
	e.Lost = settled && e.Charges == 0 && !e.Dead
	b.Orders++
	b.DoubleCharges += max(0, e.Charges-1)
	b.WrongAmounts += e.Wrong
	if e.Lost {
		b.LostOrders++
	}
	if b.endings == nil {
		b.endings = map[string]ending{}
	}
	b.endings[id] = e
}

// books compares each stack's ledger with the orders and the dead letters. When all is over, what is neither charged
// nor dead-lettered is lost; before, only what was acknowledged long enough ago.
func (s *story) books(ctx context.Context) (report, error) {
	claims, err := shop.Claims(ctx, s.metrics)
	if err != nil {
		return nil, err
	}
	counted := shop.Outcomes(claims)
	all := report{}
	for _, st := range s.stacks {
		out, err := st.books(ctx, s.closed.Load())
		if err != nil {
			return nil, fmt.Errorf("close the books of %s: %w", st.name, err)
		}
		if st.name == guarded {
			out.DuplicatesBusy = counted["duplicate_in_progress"] + counted["not_due"]
			out.DuplicatesDone = counted["duplicate_completed"]
			out.FailuresReplayed = counted["duplicate_failed"]
			out.PublishedByCopies = counted["publish_only"]
		}
		all[st.name] = out
	}
	return all, nil
}

func (s *stack) books(ctx context.Context, over bool) (out books, err error) {
	deadLetters, err := shop.Messages(ctx, s.broker.js, s.broker.names.stream(), s.broker.names.dead(s.name))
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

	rows, err := s.shop.db.QueryContext(ctx, `
		SELECT o.id, count(l.entry), count(nullif(l.amount, o.amount)), coalesce(max(l.at), 0)
		FROM orders o LEFT JOIN ledger l ON l.stack = ? AND l.order_id = o.id GROUP BY o.id`, s.name)
	if err != nil {
		return out, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var e ending
		if err := rows.Scan(&id, &e.Charges, &e.Wrong, &e.At); err != nil {
			return out, err
		}
		e.Dead = dead[id]
		settled := over
		if acked, known := s.acked.Load(id); known && e.Charges == 0 {
			settled = settled || time.Since(acked.(time.Time)) > time.Second
			e.At = acked.(time.Time).UnixMicro()
		}
		out.add(id, e, settled)
		if e.Charges > 1 && s.name == guarded && s.fates[id] == diesAfterWrite {
			out.Explained = append(out.Explained, id)
		}
	}
	if err := rows.Err(); err != nil {
		return out, err
	}
	var unasked int // charges of what nobody has ordered
	err = s.shop.db.QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM log WHERE stack = ?1 AND event = 'delivery'),
		(SELECT count(DISTINCT order_id) FROM log WHERE stack = ?1 AND event = 'delivery'),
		(SELECT count(*) FROM log WHERE stack = ?1 AND event = 'run'),
		(SELECT count(*) FROM ledger WHERE stack = ?1 AND order_id NOT IN (SELECT id FROM orders))`,
		s.name).Scan(&out.Deliveries, &out.Duplicates, &out.Runs, &unasked)
	out.Duplicates = out.Deliveries - out.Duplicates
	out.DoubleCharges += unasked
	return out, err
}

// A line of the table is a name and what was counted, by stack.
type line struct {
	Name   string
	Counts []string
	Bad    []bool // a count that is more than nothing, and must not be
}

// Part reports whether the line counts a part of the one above, and Sum whether it is what counts in the end.
func (l line) Part() bool { return strings.HasPrefix(l.Name, "  ") }
func (l line) Sum() bool  { return l.Name == strings.ToUpper(l.Name) }

// lines are the table.
func (r report) lines() (lines []line) {
	g := r[guarded]
	all := func(name string, bad bool, count func(books) int) {
		l := line{Name: name}
		for _, stack := range stacks {
			n := count(r[stack])
			l.Counts, l.Bad = append(l.Counts, fmt.Sprint(n)), append(l.Bad, bad && n > 0)
		}
		lines = append(lines, l)
	}
	onlyGuard := func(name string, n int) {
		lines = append(lines, line{name, []string{fmt.Sprint(n), "-", "-"}, make([]bool, len(stacks))})
	}
	all("orders", false, func(b books) int { return b.Orders })
	all("deliveries", false, func(b books) int { return b.Deliveries })
	all("handler runs", false, func(b books) int { return b.Runs })
	all("duplicates delivered", false, func(b books) int { return b.Duplicates })
	onlyGuard("  answered with the outcome", g.DuplicatesDone)
	onlyGuard("  held or delayed, in progress", g.DuplicatesBusy)
	onlyGuard("  published what a run left behind", g.PublishedByCopies)
	onlyGuard("  failures replayed", g.FailuresReplayed)
	onlyGuard("mismatches (same ID, other amount)", g.Mismatches)
	all("dead letters", false, func(b books) int { return b.DeadLetters })
	all("DOUBLE CHARGES", true, func(b books) int { return b.DoubleCharges })
	all("LOST ORDERS", true, func(b books) int { return b.LostOrders })
	all("WRONG AMOUNTS", true, func(b books) int { return b.WrongAmounts })
	return lines
}

// table shows the books to people, on a screen of 80 by 24.
func (r report) table() string {
	var out strings.Builder
	row := func(name string, counts ...string) {
		fmt.Fprintf(&out, "  %-34s %10s %11s %14s\n", name, counts[0], counts[1], counts[2])
	}
	row("", "oncemill", "unguarded", "Deduplicator*")
	for _, l := range r.lines() {
		row(l.Name, l.Counts...)
	}
	out.WriteString(`  * Watermill's own middleware. It marks a message before its handler runs, so
    after a failure the redelivery is dropped as a duplicate.

`)
	out.WriteString(r[guarded].verdict())
	return out.String()
}

func (b books) verdict() string {
	if b.balance() {
		return fmt.Sprintf("oncemill's ledger balances: each order charged once, %d dead letters aside.\n",
			b.DeadLetters)
	}
	s := fmt.Sprintf("oncemill's ledger does not balance: %d double charges, %d lost, %d wrong.\n",
		b.DoubleCharges, b.LostOrders, b.WrongAmounts)
	if b.Explained == nil {
		return s
	}
	return s + fmt.Sprintf(`%d of them follow a death between charge and outcome, as that of %s:
the limit of tier 1. One transaction for both (tier 2) closes it, or an ID that
the payment provider deduplicates by: see docs/guarantees.md.
`, len(b.Explained), b.Explained[0])
}
