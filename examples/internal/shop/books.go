package shop

import (
	"encoding/json"
	"fmt"
	"io"
)

// Books are what came of a run.
type Books struct {
	Orders        int `json:"orders"`
	Copies        int `json:"copies"`         // published beyond one an order
	Deliveries    int `json:"deliveries"`     // as the broker's client counts them
	Runs          int `json:"runs"`           // of the handler
	Retries       int `json:"retries"`        // runs beyond one an order
	Suppressed    int `json:"suppressed"`     // deliveries that were answered with a stored outcome
	Charges       int `json:"charges"`        //
	DeadLetters   int `json:"dead_letters"`   // orders with one
	DoubleCharges int `json:"double_charges"` // charges beyond one an order, or of an order that has a dead letter
	Lost          int `json:"lost"`           // orders with neither a charge nor a dead letter
}

// closeBooks compares what the ledger says with the dead letters.
func closeBooks(entries map[string]map[string]int, dead []Order) Books {
	b := Books{Orders: len(entries[entryOrder])}
	gaveUp := map[string]bool{}
	for _, o := range dead {
		gaveUp[o.ID] = true // after a crash there may be a second copy, with the same ID
	}
	b.DeadLetters = len(gaveUp)
	for id, n := range entries[entryOrder] {
		b.Copies += n - 1 // by a producer that was started again
		if entries[entryCharge][id] == 0 && !gaveUp[id] {
			b.Lost++
		}
	}
	for id, n := range entries[entryCharge] {
		b.Charges += n
		allowed := 1
		if gaveUp[id] {
			allowed = 0
		}
		b.DoubleCharges += max(0, n-allowed)
	}
	for _, n := range entries[entryCopy] {
		b.Copies += n
	}
	for _, n := range entries[entryRun] {
		b.Runs += n
		b.Retries += n - 1
	}
	return b
}

// Balance reports whether every order was charged once, or has a dead letter for somebody to look at.
func (b Books) Balance() bool {
	return b.DoubleCharges == 0 && b.Lost == 0 && b.Charges+b.DeadLetters == b.Orders
}

// print shows the books. While a consumer may still be at it, orders are open, not lost.
func (b Books) print(w io.Writer, format string, complete bool) error {
	if format == "json" {
		return json.NewEncoder(w).Encode(b)
	}
	open := "LOST ORDERS"
	if !complete {
		open = "open orders"
	}
	for _, line := range []struct {
		name string
		n    int
	}{
		{"orders", b.Orders},
		{"copies published beyond that", b.Copies},
		{"deliveries", b.Deliveries},
		{"duplicates suppressed", b.Suppressed},
		{"handler runs", b.Runs},
		{"  of them retries", b.Retries},
		{"charges", b.Charges},
		{"dead letters", b.DeadLetters},
		{"DOUBLE CHARGES", b.DoubleCharges},
		{open, b.Lost},
	} {
		if _, err := fmt.Fprintf(w, "  %-30s %6d\n", line.name, line.n); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, b.verdict(complete))
	return err
}

func (b Books) verdict(complete bool) string {
	switch {
	case !complete && b.DoubleCharges == 0:
		return "\nNothing was charged twice. Open orders have no outcome yet."
	case b.Balance():
		return "\nThe books balance: every order was charged once, or has a dead letter for somebody to look at."
	}
	return "\nTHE BOOKS DO NOT BALANCE."
}
