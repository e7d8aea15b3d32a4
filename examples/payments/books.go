package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// Books are what the example counts, and all that is not as it should be.
type Books struct {
	Payments    int // that were sent
	Requests    int // that clients made
	Republished int // messages that somebody published again
	Kills       int
	Messages    int // of payments in the stream, copies included
	Deliveries  int // of payments to charge
	Charged     int // payments that are in the ledger
	Declined    int // payments over the limit, which have a dead letter
	Receipts    int // with different IDs
	ReceiptMore int // copies beyond that
	Redelivered int // deliveries to notify beyond one for each receipt
	Transfers   int // that the API made
	Calls       int // of the API
	Mistakes    []string
}

// Balance reports whether each payment has its effects, each once, and nothing else has any.
func (b Books) Balance() bool {
	return len(b.Mistakes) == 0 &&
		b.Charged+b.Declined == b.Payments && b.Receipts == b.Charged && b.Transfers == b.Charged
}

// facts are what is there, or should be, by what it is about.
type facts map[string][]string

func (f facts) add(about string, fact any) { f[about] = append(f[about], fmt.Sprint(fact)) }

// wanted is what follows from the payments: each has two entries, one receipt and one transfer; or, if it is declined,
// a dead letter alone.
func wanted(all []planned) facts {
	want, balances := facts{}, map[string]int64{}
	for _, p := range all {
		want.add("payment "+p.ID, p.payment)
		if p.luck == declined {
			want.add("dead letter of "+p.ID, "one")
			continue
		}
		want.add("entries of "+p.ID, entry{p.ID, p.Account, -p.Cents})
		want.add("entries of "+p.ID, entry{p.ID, p.Merchant, p.Cents})
		want.add("receipts of "+p.ID, receipt{p.ID, p.Cents})
		want.add("transfers of "+p.ID, 1)
		balances[p.Account] -= p.Cents
		balances[p.Merchant] += p.Cents
	}
	for account, cents := range balances {
		want.add("balance of "+account, cents)
	}
	return want
}

// A letter is a message as it lies in a stream.
type letter struct {
	id   string
	data []byte
}

// closeBooks compares what is there with the plan.
func closeBooks(all []planned, l *ledger, receipts, dead []letter, transfers map[string]int) Books {
	b, found := Books{Payments: len(all)}, facts{}
	for id, p := range l.payments {
		found.add("payment "+id, p)
	}
	charged := map[string]bool{}
	for _, e := range l.entries {
		found.add("entries of "+e.payment, e)
		charged[e.payment] = true
	}
	b.Charged = len(charged)
	for account, cents := range l.balances {
		found.add("balance of "+account, cents)
	}
	ids := map[string]string{}
	for _, m := range receipts {
		var r receipt
		switch err := json.Unmarshal(m.data, &r); {
		case err != nil:
			found.add("receipts of nobody", m.data)
		case ids[m.id] == string(m.data):
			b.ReceiptMore++
		default:
			found.add("receipts of "+r.Payment, r)
		}
		ids[m.id] = string(m.data)
	}
	b.Receipts = len(ids)
	for _, m := range dead {
		p, err := parsePayment(m.data)
		if about := "dead letter of " + p.ID; err != nil {
			found.add("dead letters of others", m.data)
		} else if found[about] == nil { // after a crash there may be a second copy
			found.add(about, "one")
			b.Declined++
		}
	}
	for id, n := range transfers {
		found.add("transfers of "+id, n)
		b.Transfers += n
	}
	b.compare(found, wanted(all))
	return b
}

// compare notes what differs.
func (b *Books) compare(found, want facts) {
	for about := range want {
		if found[about] == nil {
			found[about] = []string{}
		}
	}
	for about, is := range found {
		slices.Sort(is)
		slices.Sort(want[about])
		if !slices.Equal(is, want[about]) {
			b.Mistakes = append(b.Mistakes, fmt.Sprintf("%s: %q, want %q", about, is, want[about]))
		}
	}
	slices.Sort(b.Mistakes)
}

// readBooks reads the ledger, the streams and what the API has done.
func readBooks(ctx context.Context, all []planned, db *database, br *broker, a *api) (b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	l, err := db.ledger(ctx)
	letters := func(subject string) (found []letter) {
		messages, e := shop.Messages(ctx, br.js, br.stream(), subject)
		err = errors.Join(err, e)
		for _, m := range messages {
			found = append(found, letter{m.Headers().Get(producer.HeaderID), m.Data()})
		}
		return found
	}
	taken, receipts, dead := letters(br.payments()), letters(br.receipts()), letters(br.dead())
	_, charged, err1 := shop.AtRest(ctx, br.js, br.stream(), charge)
	_, notified, err2 := shop.AtRest(ctx, br.js, br.stream(), notify)
	if err := errors.Join(err, err1, err2); err != nil {
		return b, err
	}
	b = closeBooks(all, l, receipts, dead, a.transfers)
	b.Messages, b.Deliveries, b.Redelivered, b.Calls = len(taken), charged, notified-b.Receipts, a.calls
	for _, p := range all {
		if p.luck == repeated {
			b.Republished++
		}
	}
	return b, nil
}

// print prints the books, as table or json.
func (b Books) print(w io.Writer, format string) error {
	if format == "json" {
		return json.NewEncoder(w).Encode(b)
	}
	verdict := "The books balance: each payment is in the ledger once, and the API was told of each once."
	if !b.Balance() {
		verdict = fmt.Sprintf("THE BOOKS DO NOT BALANCE: %q", b.Mistakes[:min(10, len(b.Mistakes))])
	}
	return shop.Table(w, verdict,
		"payments", b.Payments, "  charged", b.Charged, "  declined", b.Declined,
		"requests", b.Requests,
		"messages", b.Messages, "  published again by others", b.Republished, "  deliveries to charge", b.Deliveries,
		"receipts", b.Receipts, "  copies beyond that", b.ReceiptMore, "  further deliveries to notify", b.Redelivered,
		"transfers of the API", b.Transfers, "  calls", b.Calls,
		"consumers killed", b.Kills, "MISTAKES", len(b.Mistakes))
}
