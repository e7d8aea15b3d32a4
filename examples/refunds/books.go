package main

import (
	"context"
	"fmt"
)

// Books are what came of the tickets.
type Books struct {
	Tickets  int `json:"tickets"`
	Calls    int `json:"calls"`    // of the tool, by models; without the repetitions of agents in processes of their own
	Busy     int `json:"busy"`     // answered with: another agent is at it
	Later    int `json:"later"`    // answered with: not all is refunded
	Deaths   int `json:"deaths"`   // of processes, after a payment and before its outcome was stored
	Requests int `json:"requests"` // to the bank
	Refused  int `json:"refused"`  // of these
	Payments int `json:"payments"` // that the bank made
	Due      int `json:"due"`      // that it had to make
	Double   int `json:"double"`   // payments beyond one for each part of an order
	Missing  int `json:"missing"`  // parts that were not paid back
	Wrong    int `json:"wrong"`    // payments of another amount, or that nobody asked for
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
	return fmt.Sprintf(`%d tickets: the tool was called %d times; %d times another agent was at it, %d times a part remained
%d agents were killed after a payment, before anybody knew of it
the bank got %d requests, refused %d, knew %d again by their key, and made %d payments of %d
double %d, missing %d, wrong %d
%s
`, b.Tickets, b.Calls, b.Busy, b.Later, b.Deaths, b.Requests, b.Refused, b.Requests-b.Refused-b.Payments, b.Payments, b.Due,
		b.Double, b.Missing, b.Wrong, verdict)
}

func closeBooks(ctx context.Context, tickets []ticket, b *bank, c *counts) (Books, error) {
	out := Books{
		Tickets: len(tickets), Calls: int(c.calls.Load()), Busy: int(c.busy.Load()), Later: int(c.later.Load()), Deaths: int(c.deaths.Load()),
	}
	var err error
	if out.Requests, out.Refused, err = b.requests(ctx); err != nil {
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
