package main

import (
	"encoding/json"
	"fmt"
	"testing"
)

// evidence is what books are made from.
type evidence struct {
	ledger   []string
	receipts []letter
	dead     []letter
	sent     map[string]int // transfers by payment
}

var twoPlanned = []planned{
	{payment: payment{ID: "p1", Account: "ann", Merchant: "shop", Cents: 10}, luck: fine},
	{payment: payment{ID: "p2", Account: "bob", Merchant: "shop", Cents: limit + 1}, luck: declined},
}

func receiptOf(id string, cents int64) []byte {
	b, _ := json.Marshal(receipt{id, cents})
	return b
}

// rightEvidence is that of two payments, one of them declined.
func rightEvidence() evidence {
	return evidence{
		ledger: []string{
			"payment p1 ann shop 10", fmt.Sprint("payment p2 bob shop ", limit+1),
			"entry p1 ann -10", "entry p1 shop 10", "balance ann -10", "balance shop 10",
		},
		receipts: []letter{{"r1", receiptOf("p1", 10)}, {"r1", receiptOf("p1", 10)}},
		dead:     []letter{{"d2", twoPlanned[1].JSON()}},
		sent:     map[string]int{"p1": 1},
	}
}

func (e evidence) books() Books { return closeBooks(twoPlanned, e.ledger, e.receipts, e.dead, e.sent) }

func TestBooks_CopiesDoNoHarm(t *testing.T) {
	t.Parallel()
	if b := rightEvidence().books(); !b.Balance() || b.Charged != 1 || b.Declined != 1 || b.ReceiptMore != 1 || b.Receipts != 1 {
		t.Errorf("%+v", b)
	}
}

func TestBooks_EachMistakeShows(t *testing.T) {
	t.Parallel()
	for name, mistake := range map[string]func(*evidence){
		"the service forgot a payment":       func(e *evidence) { e.ledger = append(e.ledger[:1], e.ledger[2:]...) },
		"the service changed a payment":      func(e *evidence) { e.ledger[0] = "payment p1 eve shop 10" },
		"not booked":                         func(e *evidence) { e.ledger = append(e.ledger[:2], e.ledger[4:]...) },
		"booked twice":                       func(e *evidence) { e.ledger = append(e.ledger, e.ledger[2:4]...) },
		"half booked":                        func(e *evidence) { e.ledger = append(e.ledger[:3], e.ledger[4:]...) },
		"booked to another account":          func(e *evidence) { e.ledger[2] = "entry p1 eve -10" },
		"another amount":                     func(e *evidence) { e.ledger[3] = "entry p1 shop 11" },
		"declined, but booked":               func(e *evidence) { e.ledger = append(e.ledger, "entry p2 bob -1") },
		"nobody sent it":                     func(e *evidence) { e.ledger = append(e.ledger, "entry p3 bob -1") },
		"a balance differs":                  func(e *evidence) { e.ledger[4] = "balance ann -9" },
		"a balance of nobody":                func(e *evidence) { e.ledger = append(e.ledger, "balance eve 0") },
		"no receipt":                         func(e *evidence) { e.receipts = nil },
		"a receipt of another amount":        func(e *evidence) { e.receipts = []letter{{"r1", receiptOf("p1", 11)}} },
		"two receipts of one ID":             func(e *evidence) { e.receipts[1].data = receiptOf("p1", 11) },
		"two IDs of one payment":             func(e *evidence) { e.receipts[1].id = "r2" },
		"a receipt of a declined payment":    func(e *evidence) { e.receipts = append(e.receipts, letter{"r2", receiptOf("p2", limit+1)}) },
		"a receipt of nothing":               func(e *evidence) { e.receipts = append(e.receipts, letter{"r3", receiptOf("p3", 1)}) },
		"a receipt that is none":             func(e *evidence) { e.receipts = append(e.receipts, letter{"r3", []byte("?")}) },
		"no dead letter":                     func(e *evidence) { e.dead = nil },
		"a dead letter of a charged payment": func(e *evidence) { e.dead = append(e.dead, letter{"d1", twoPlanned[0].JSON()}) },
		"a receipt is dead":                  func(e *evidence) { e.dead = append(e.dead, letter{"d3", receiptOf("p1", 10)}) },
		"no transfer":                        func(e *evidence) { e.sent = nil },
		"two transfers":                      func(e *evidence) { e.sent["p1"] = 2 },
		"a transfer of a declined payment":   func(e *evidence) { e.sent["p2"] = 1 },
		"a transfer of nothing":              func(e *evidence) { e.sent["p3"] = 1 },
	} {
		e := rightEvidence()
		mistake(&e)
		if b := e.books(); b.Balance() {
			t.Errorf("%s: the books balance: %+v", name, b)
		}
	}
}
