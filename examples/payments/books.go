package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oncemill/oncemill/examples/internal/bank"
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

// facts count what is there, as text, less what should be there.
type facts map[string]int

func (f facts) add(n int, words ...any) { f[strings.TrimSuffix(fmt.Sprintln(words...), "\n")] += n }

// takeWanted takes off what follows from the payments: each has two entries, one receipt and one transfer; or, if it is
// declined, a dead letter alone.
func (f facts) takeWanted(all []planned) {
	balances := map[string]int64{}
	for _, p := range all {
		f.add(-1, "payment", p.ID, p.Account, p.Merchant, p.Cents)
		if p.luck == declined {
			f.add(-1, "dead letter of", p.ID)
			continue
		}
		f.add(-1, "entry", p.ID, p.Account, -p.Cents)
		f.add(-1, "entry", p.ID, p.Merchant, p.Cents)
		f.add(-1, "receipt", p.ID, p.Cents)
		f.add(-1, "transfer", p.ID)
		balances[p.Account] -= p.Cents
		balances[p.Merchant] += p.Cents
	}
	for account, cents := range balances {
		f.add(-1, "balance", account, cents)
	}
}

// A letter is a message as it lies in a stream.
type letter struct {
	id   string
	data []byte
}

// closeBooks compares what is there with the plan.
func closeBooks(all []planned, ledger []string, receipts, dead []letter, transfers map[string]int) Books {
	b, f, charged := Books{Payments: len(all)}, facts{}, map[string]bool{}
	for _, line := range ledger {
		f.add(1, line)
		if words := strings.Fields(line); words[0] == "entry" {
			charged[words[1]] = true
		}
	}
	b.Charged = len(charged)
	ids := map[string]string{}
	for _, m := range receipts {
		var r receipt
		switch err := json.Unmarshal(m.data, &r); {
		case err != nil:
			f.add(1, "receipt that is none", m.id)
		case ids[m.id] == string(m.data):
			b.ReceiptMore++
		default:
			f.add(1, "receipt", r.Payment, r.Cents)
		}
		ids[m.id] = string(m.data)
	}
	b.Receipts = len(ids)
	given := map[string]bool{}
	for _, m := range dead {
		switch p, err := parsePayment(m.data); {
		case err != nil:
			f.add(1, "dead letter that is no payment", m.id)
		case !given[p.ID]: // after a crash there may be a second copy
			given[p.ID] = true
			f.add(1, "dead letter of", p.ID)
		}
	}
	b.Declined = len(given)
	for id, n := range transfers {
		f.add(n, "transfer", id)
		b.Transfers += n
	}
	f.takeWanted(all)
	for fact, n := range f {
		if n != 0 {
			b.Mistakes = append(b.Mistakes, fmt.Sprintf("%s: %+d", fact, n))
		}
	}
	slices.Sort(b.Mistakes)
	return b
}

// readBooks reads the ledger, the streams and what the API has done.
func readBooks(ctx context.Context, all []planned, db *database, br *broker, api *bank.Stub) (b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	ledger, err := db.facts(ctx)
	deadLetters := func(subject string) (found []letter) {
		messages, e := shop.Messages(ctx, br.js, br.stream(), subject)
		err = errors.Join(err, e)
		for _, m := range messages {
			found = append(found, letter{m.Headers().Get(producer.HeaderID), m.Data()})
		}
		return found
	}
	taken, receipts, dead := deadLetters(br.payments()), deadLetters(br.receipts()), deadLetters(br.dead())
	_, charged, err1 := shop.AtRest(ctx, br.js, br.stream(), charge)
	_, notified, err2 := shop.AtRest(ctx, br.js, br.stream(), notify)
	if err := errors.Join(err, err1, err2); err != nil {
		return b, err
	}
	transfers, calls := api.Counts()
	b = closeBooks(all, ledger, receipts, dead, transfers)
	b.Messages, b.Deliveries, b.Redelivered, b.Calls = len(taken), charged, notified-b.Receipts, calls
	for _, p := range all {
		if p.luck == repeated {
			b.Republished++
		}
	}
	return b, nil
}

func (b Books) verdict() string {
	if b.Balance() {
		return "The books balance: each payment is in the ledger once, and the API was told of each once."
	}
	return fmt.Sprintf("THE BOOKS DO NOT BALANCE: %q", b.Mistakes[:min(10, len(b.Mistakes))])
}
