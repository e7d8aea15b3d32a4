package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// Books are what came of a run.
type Books struct {
	Requests   int `json:"requests"`
	Repeated   int `json:"repeated"`    // of them
	RolledBack int `json:"rolled_back"` // transactions that had written both an order and its event
	BrokenOff  int `json:"broken_off"`  // transactions of clients that hung up
	Ordered    int `json:"ordered"`     // what clients wanted
	Committed  int `json:"committed"`   // orders that are in the database
	Refused    int `json:"refused"`     // orders that were never committed, as their clients were told
	Waited     int `json:"waited"`      // events that were in the outbox when the second relay began
	Events     int `json:"events"`      // at the broker, with different IDs
	Copies     int `json:"copies"`      // beyond that
	Lost       int `json:"lost"`        // orders that are in the database and have no event
	Phantoms   int `json:"phantoms"`    // events of orders that are not in the database
	Wrong      int `json:"wrong"`       // events with another content than their order, or another ID than is theirs
	Broken     int `json:"broken"`      // answers to clients that the database contradicts
}

// closeBooks compares what is in the database with what is at the broker, and with what clients were told.
func closeBooks(orders map[string]shop.Order, events []received, confirmed map[string]bool) Books {
	b := Books{Committed: len(orders)}
	seen, announced := map[string]bool{}, map[string]bool{}
	for _, e := range events {
		o, committed := orders[e.order.ID]
		switch {
		case seen[e.id]:
			b.Copies++
		case !committed:
			b.Phantoms++
		}
		if committed && (o != e.order || e.id != event("", o).ID) {
			b.Wrong++
		}
		seen[e.id], announced[e.order.ID] = true, true
	}
	b.Events = len(seen)
	for id := range orders {
		if !announced[id] {
			b.Lost++
		}
	}
	for id, taken := range confirmed {
		_, committed := orders[id]
		switch {
		case taken != committed:
			b.Broken++
		case !taken:
			b.Refused++
		}
	}
	return b
}

// Balance reports whether every committed order has its event, nothing else has one, and clients were told the truth.
func (b Books) Balance() bool {
	return b.Lost == 0 && b.Phantoms == 0 && b.Wrong == 0 && b.Broken == 0 &&
		b.Events == b.Committed && b.Committed+b.Refused == b.Ordered
}

func (b Books) print(w io.Writer, format string) error {
	if format == "json" {
		return json.NewEncoder(w).Encode(b)
	}
	for _, line := range []struct {
		name string
		n    int
	}{
		{"requests", b.Requests},
		{"  of them repeated", b.Repeated},
		{"transactions rolled back", b.RolledBack},
		{"  broken off by clients", b.BrokenOff},
		{"orders", b.Ordered},
		{"  committed", b.Committed},
		{"  refused", b.Refused},
		{"events published", b.Events},
		{"  waited for the second relay", b.Waited},
		{"  copies beyond that", b.Copies},
		{"LOST EVENTS", b.Lost},
		{"EVENTS OF ROLLED-BACK ORDERS", b.Phantoms},
		{"EVENTS WITH OTHER CONTENT", b.Wrong},
		{"ANSWERS THAT ARE NOT TRUE", b.Broken},
	} {
		if _, err := fmt.Fprintf(w, "  %-30s %6d\n", line.name, line.n); err != nil {
			return err
		}
	}
	verdict := "\nThe books balance: every committed order has its event, and no other order has one."
	if !b.Balance() {
		verdict = "\nTHE BOOKS DO NOT BALANCE."
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}
