package billing

import (
	"io"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// Books are what came of a run.
type Books struct {
	Orders        int
	Copies        int // published beyond one an order
	Runs          int // of the handler
	Retries       int // runs beyond one an order
	Suppressed    int // deliveries that were answered with a stored outcome
	Charges       int
	DeadLetters   int // orders with one
	DoubleCharges int // charges beyond one an order, or of an order that has a dead letter
	Lost          int // orders with neither a charge nor a dead letter
}

// closeBooks compares what was ordered with what the bank did, and with the dead letters.
func closeBooks(orders []shop.Order, bank *Bank, dead []shop.Order) Books {
	b := Books{Orders: len(orders), Copies: (len(orders) + placedAgain - 1) / placedAgain, Retries: -len(bank.calls)}
	gaveUp := map[string]bool{}
	for _, o := range dead {
		gaveUp[o.ID] = true // after a crash there may be a second copy, with the same ID
	}
	b.DeadLetters = len(gaveUp)
	for _, o := range orders {
		if bank.charges[o.ID] == 0 && !gaveUp[o.ID] {
			b.Lost++
		}
	}
	for id, n := range bank.charges {
		b.Charges += n
		if b.DoubleCharges += n; !gaveUp[id] {
			b.DoubleCharges--
		}
	}
	for _, n := range bank.calls {
		b.Runs += n
		b.Retries += n
	}
	return b
}

// Balance reports whether every order was charged once, or has a dead letter for somebody to look at.
func (b Books) Balance() bool {
	return b.DoubleCharges == 0 && b.Lost == 0 && b.Charges+b.DeadLetters == b.Orders
}

func (b Books) print(w io.Writer) error {
	verdict := "The books balance: every order was charged once, or has a dead letter for somebody to look at."
	if !b.Balance() {
		verdict = "THE BOOKS DO NOT BALANCE."
	}
	return shop.Table(w, verdict,
		"orders", b.Orders, "copies published beyond that", b.Copies, "duplicates suppressed", b.Suppressed,
		"handler runs", b.Runs, "  of them retries", b.Retries, "charges", b.Charges, "dead letters", b.DeadLetters,
		"DOUBLE CHARGES", b.DoubleCharges, "LOST ORDERS", b.Lost)
}
