package main

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
)

// evidence is what books are made from.
type evidence struct {
	ledger   *ledger
	receipts []letter
	dead     []letter
	calls    []call
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
		calls:    []call{{true, "k1", string(receiptOf("p1", 10))}, {false, "k1", string(receiptOf("p1", 10))}},
	}
}

func (e evidence) books() Books {
	b := Books{Payments: len(twoPlanned)}
	b.readLedger(e.ledger, twoPlanned)
	b.readReceipts(e.receipts, twoPlanned)
	b.readDead(e.dead, twoPlanned)
	b.readCalls(e.calls, twoPlanned)
	return b
}

func TestBooks_CopiesAndRepeatedCallsDoNoHarm(t *testing.T) {
	t.Parallel()
	if b := rightEvidence().books(); !b.Balance() || b.Charged != 1 || b.Declined != 1 || b.ReceiptMore != 1 || b.Calls != 2 {
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
		"two IDs of one payment":             func(e *evidence) { e.receipts[1].id = "r2" },
		"a receipt of a declined payment":    func(e *evidence) { e.receipts = append(e.receipts, letter{"r2", receiptOf("p2", limit+1)}) },
		"a receipt of nothing":               func(e *evidence) { e.receipts = append(e.receipts, letter{"r3", receiptOf("p3", 1)}) },
		"a receipt that is none":             func(e *evidence) { e.receipts = append(e.receipts, letter{"r3", []byte("?")}) },
		"no dead letter":                     func(e *evidence) { e.dead = nil },
		"a dead letter of a charged payment": func(e *evidence) { e.dead = append(e.dead, letter{"d1", twoPlanned[0].JSON()}) },
		"a receipt is dead":                  func(e *evidence) { e.dead = append(e.dead, letter{"d3", receiptOf("p1", 10)}) },
		"no transfer":                        func(e *evidence) { e.calls = nil },
		"two transfers":                      func(e *evidence) { e.calls[1] = call{true, "k2", e.calls[0].body} },
		"a transfer of a declined payment":   func(e *evidence) { e.calls = append(e.calls, call{true, "k2", string(receiptOf("p2", 1))}) },
		"a transfer of nothing":              func(e *evidence) { e.calls = append(e.calls, call{true, "k3", string(receiptOf("p3", 1))}) },
	} {
		e := rightEvidence()
		mistake(&e)
		if b := e.books(); b.Balance() {
			t.Errorf("%s: the books balance: %+v", name, b)
		}
	}
}

func TestPlan_BalancesAddUpToNothing(t *testing.T) {
	t.Parallel()
	var sum int64
	for cents := range maps.Values(balances(plan(options{payments: 500, seed: 1}))) {
		sum += cents
	}
	if sum != 0 || !slices.ContainsFunc(plan(options{payments: 20}), func(p planned) bool { return p.luck == declined }) {
		t.Errorf("the balances add up to %d", sum)
	}
}
