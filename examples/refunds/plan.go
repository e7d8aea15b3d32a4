package main

import (
	"encoding/json"
	"fmt"
)

// How an order was paid.
const (
	card    = "card"
	voucher = "voucher"
)

// A ticket is a customer who wants an order refunded.
type ticket struct {
	ID    string
	Order string
	Parts []payment
	Kind  int
}

// What happens to a ticket, in turn.
const (
	asksAgain = iota // the model repeats its call
	twoAgents        // at the same time, in two processes
	dies             // after the first payment
	atNight          // the voucher service is closed
	kinds
)

func plan(tickets int) []ticket {
	all := make([]ticket, tickets)
	for i := range all {
		t := ticket{ID: fmt.Sprintf("ticket-%d", i+1), Order: fmt.Sprintf("A-%d", i+1), Kind: i % kinds}
		t.Parts = []payment{{card, 1000 + i}}
		if t.Kind == atNight {
			t.Parts = append(t.Parts, payment{voucher, 500 + i})
		}
		all[i] = t
	}
	return all
}

// reasons are how a model says the same thing.
var reasons = []string{"arrived broken", "the customer reports that it arrived broken", "Broken on arrival."}

// call is the try'th time that a model of an agent calls the tool for a ticket: it says the same in other words and another
// order of members.
func (t ticket) call(try int) toolCall {
	reason, _ := json.Marshal(reasons[try%len(reasons)]) // a string
	args := fmt.Sprintf(`{"order":%q,"cents":%d,"reason":%s}`, t.Order, total(t.Parts), reason)
	if try%2 == 1 {
		args = fmt.Sprintf(`{ "reason": %s, "cents": %d, "order": %q }`, reason, total(t.Parts), t.Order)
	}
	return toolCall{Conversation: t.ID, Step: "resolve", Args: json.RawMessage(args)}
}

func orders(tickets []ticket) map[string][]payment {
	all := map[string][]payment{}
	for _, t := range tickets {
		all[t.Order] = t.Parts
	}
	return all
}
