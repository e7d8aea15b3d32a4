package main

import (
	"context"
	"encoding/json"
	"fmt"
)

// Books are what the example counts. Those from Lost on must be 0.
type Books struct {
	Payments    int `json:"payments"`    // that were sent
	Requests    int `json:"requests"`    // that clients made
	Repeated    int `json:"repeated"`    // of them, beyond the first of a payment
	Republished int `json:"republished"` // messages that somebody published again
	Kills       int `json:"kills"`
	Messages    int `json:"messages"`    // of payments in the stream, copies included
	Deliveries  int `json:"deliveries"`  // of payments to charge
	Charged     int `json:"charged"`     // payments that are in the ledger
	Declined    int `json:"declined"`    // payments over the limit, which have a dead letter
	Receipts    int `json:"receipts"`    // with different IDs
	ReceiptMore int `json:"receiptMore"` // copies beyond that
	Redelivered int `json:"redelivered"` // deliveries to notify beyond one for each receipt
	Transfers   int `json:"transfers"`   // that the API made
	Calls       int `json:"calls"`       // of the API

	Lost       int `json:"lost"`       // payments without any entries, or that the service forgot
	Double     int `json:"double"`     // payments with more than their two entries
	Wrong      int `json:"wrong"`      // entries of other amounts or accounts, or of nothing that was sent
	Unbalanced int `json:"unbalanced"` // accounts that have another balance than the plan says
	NoReceipt  int `json:"noReceipt"`  // charged payments without a receipt, or with one that says something else
	TwoIDs     int `json:"twoIds"`     // payments with receipts of different IDs
	Untold     int `json:"untold"`     // charged payments that the API has no transfer of
	ToldTwice  int `json:"toldTwice"`  // payments with more than one transfer
	Dead       int `json:"dead"`       // dead letters that should not be there, or are missing
}

// closeBooks compares the ledger, the streams and the API's journal with the plan.
func (s *stage) closeBooks(ctx context.Context, all []planned) (b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	b.Payments = len(all)
	l, err := s.db.ledger(ctx)
	if err != nil {
		return b, fmt.Errorf("read the ledger: %w", err)
	}
	b.readLedger(l, all)
	taken, err := s.broker.letters(ctx, s.broker.paymentStream())
	if err != nil {
		return b, fmt.Errorf("read the payments' messages: %w", err)
	}
	b.Messages = len(taken)
	receipts, err := s.broker.letters(ctx, s.broker.receiptStream())
	if err != nil {
		return b, fmt.Errorf("read the receipts: %w", err)
	}
	b.readReceipts(receipts, all)
	dead, err := s.broker.letters(ctx, s.broker.deadStream())
	if err != nil {
		return b, fmt.Errorf("read the dead letters: %w", err)
	}
	b.readDead(dead, all)
	calls, err := readJournal(s.journal)
	if err != nil {
		return b, fmt.Errorf("read the API's journal: %w", err)
	}
	b.readCalls(calls, all)
	err = b.readDeliveries(ctx, s.broker)
	return b, err
}

func (b *Books) readDeliveries(ctx context.Context, broker *broker) error {
	_, charge, err := broker.atRest(ctx, broker.paymentStream(), ledgerConsumer)
	if err != nil {
		return err
	}
	_, notify, err := broker.atRest(ctx, broker.receiptStream(), notifyConsumer)
	b.Deliveries, b.Redelivered = int(charge), int(notify)-b.Receipts
	return err
}

// readLedger compares entries and balances with the plan.
func (b *Books) readLedger(l *ledger, all []planned) {
	lines := map[string][]entry{}
	for _, e := range l.entries {
		lines[e.payment] = append(lines[e.payment], e)
	}
	for _, p := range all {
		found := lines[p.ID]
		delete(lines, p.ID)
		switch {
		case l.payments[p.ID] != p.payment:
			b.Lost++
		case p.luck == declined && len(found) > 0:
			b.Wrong++
		case p.luck == declined:
		case len(found) == 0:
			b.Lost++
		case len(found) != 2:
			b.Double++
		case sum(found, p.Account) != -p.Cents || sum(found, p.Merchant) != p.Cents:
			b.Wrong++
		default:
			b.Charged++
		}
	}
	b.Wrong += len(lines) // of nothing that was sent
	want := balances(all)
	for account, cents := range want {
		if l.balances[account] != cents {
			b.Unbalanced++
		}
	}
	for account := range l.balances {
		if _, planned := want[account]; !planned {
			b.Unbalanced++
		}
	}
}

func sum(entries []entry, account string) (cents int64) {
	for _, e := range entries {
		if e.account == account {
			cents += e.cents
		}
	}
	return cents
}

// readReceipts wants one ID of each payment that is not declined.
func (b *Books) readReceipts(letters []letter, all []planned) {
	ids, told := map[string]bool{}, map[string]map[string]receipt{}
	for _, m := range letters {
		var r receipt
		if json.Unmarshal(m.data, &r) != nil {
			b.Wrong++
			continue
		}
		ids[m.id] = true
		if told[r.Payment] == nil {
			told[r.Payment] = map[string]receipt{}
		}
		told[r.Payment][m.id] = r
	}
	b.Receipts, b.ReceiptMore = len(ids), len(letters)-len(ids)
	for _, p := range all {
		found := told[p.ID]
		delete(told, p.ID)
		if len(found) > 1 {
			b.TwoIDs++
		}
		right := false
		for _, r := range found {
			right = r.Cents == p.Cents
		}
		if right == (p.luck == declined) {
			b.NoReceipt++
		}
	}
	b.Wrong += len(told)
}

// readDead wants a dead letter of each payment that is declined, and no others.
func (b *Books) readDead(letters []letter, all []planned) {
	about := map[string]bool{}
	for _, m := range letters {
		p, err := parsePayment(m.data)
		if err != nil {
			b.Dead++ // a receipt
			continue
		}
		about[p.ID] = true
	}
	for _, p := range all {
		switch {
		case about[p.ID] != (p.luck == declined):
			b.Dead++
		case about[p.ID]:
			b.Declined++
		}
	}
}

// readCalls wants one transfer of each payment that is not declined.
func (b *Books) readCalls(calls []call, all []planned) {
	transfers := map[string]int{}
	for _, c := range calls {
		b.Calls++
		var r receipt
		switch {
		case !c.transfer:
		case json.Unmarshal([]byte(c.body), &r) != nil:
			b.Wrong++
		default:
			b.Transfers++
			transfers[r.Payment]++
		}
	}
	for _, p := range all {
		n := transfers[p.ID]
		delete(transfers, p.ID)
		switch {
		case n > 1:
			b.ToldTwice++
		case (n == 0) != (p.luck == declined):
			b.Untold++
		}
	}
	b.Wrong += len(transfers)
}

// Balance reports whether each payment has its effects, each once, and nothing else has any.
func (b Books) Balance() bool {
	return b.Lost+b.Double+b.Wrong+b.Unbalanced+b.NoReceipt+b.TwoIDs+b.Untold+b.ToldTwice+b.Dead == 0 &&
		b.Charged+b.Declined == b.Payments && b.Receipts == b.Charged && b.Transfers == b.Charged
}
