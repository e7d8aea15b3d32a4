package main

import (
	"encoding/json"
	"testing"
)

// evidence is what books are made from.
type evidence struct {
	ledger   *ledger
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
		ledger: &ledger{
			payments: map[string]payment{"p1": twoPlanned[0].payment, "p2": twoPlanned[1].payment},
			entries:  []entry{{"p1", "ann", -10}, {"p1", "shop", 10}},
			balances: map[string]int64{"ann": -10, "shop": 10},
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
		"the service forgot a payment":       func(e *evidence) { delete(e.ledger.payments, "p2") },
		"the service changed a payment":      func(e *evidence) { e.ledger.payments["p1"] = payment{ID: "p1", Account: "eve"} },
		"not booked":                         func(e *evidence) { e.ledger.entries = nil },
		"booked twice":                       func(e *evidence) { e.ledger.entries = append(e.ledger.entries, e.ledger.entries...) },
		"half booked":                        func(e *evidence) { e.ledger.entries = e.ledger.entries[:1] },
		"booked to another account":          func(e *evidence) { e.ledger.entries[0].account = "eve" },
		"another amount":                     func(e *evidence) { e.ledger.entries[1].cents++ },
		"declined, but booked":               func(e *evidence) { e.ledger.entries = append(e.ledger.entries, entry{"p2", "bob", -1}) },
		"nobody sent it":                     func(e *evidence) { e.ledger.entries = append(e.ledger.entries, entry{"p3", "bob", -1}) },
		"a balance differs":                  func(e *evidence) { e.ledger.balances["ann"]++ },
		"a balance of nobody":                func(e *evidence) { e.ledger.balances["eve"] = 0 },
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
