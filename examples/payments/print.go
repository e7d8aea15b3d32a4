package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// print prints the books, as table or json.
func (b Books) print(w io.Writer, format string) error {
	if format == "json" {
		return json.NewEncoder(w).Encode(b)
	}
	for _, line := range []struct {
		name string
		n    int
	}{
		{"payments", b.Payments},
		{"  charged", b.Charged},
		{"  declined", b.Declined},
		{"requests", b.Requests},
		{"  of them repeated", b.Repeated},
		{"messages", b.Messages},
		{"  published again by others", b.Republished},
		{"  deliveries to charge", b.Deliveries},
		{"receipts", b.Receipts},
		{"  copies beyond that", b.ReceiptMore},
		{"  further deliveries to notify", b.Redelivered},
		{"transfers of the API", b.Transfers},
		{"  calls", b.Calls},
		{"consumers killed", b.Kills},
		{"LOST PAYMENTS", b.Lost},
		{"BOOKED TWICE", b.Double},
		{"BOOKED WRONG", b.Wrong},
		{"ACCOUNTS WITH A WRONG BALANCE", b.Unbalanced},
		{"CHARGED WITHOUT RECEIPT", b.NoReceipt},
		{"RECEIPTS WITH TWO IDS", b.TwoIDs},
		{"TRANSFERS NOT MADE", b.Untold},
		{"TRANSFERS MADE TWICE", b.ToldTwice},
		{"WRONG DEAD LETTERS", b.Dead},
	} {
		if _, err := fmt.Fprintf(w, "  %-32s %6d\n", line.name, line.n); err != nil {
			return err
		}
	}
	verdict := "\nThe books balance: each payment is in the ledger once, and the API was told of each once."
	if !b.Balance() {
		verdict = "\nTHE BOOKS DO NOT BALANCE."
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}
