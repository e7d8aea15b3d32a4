package main

import (
	"context"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// tamper breaks the database of a consumer, as the name of its run says.
func tamper(o options, db *database) {
	inbox, publish := db.Inbox, db.Publish
	switch o.Run {
	case "forgets":
		db.Inbox = forgetfulInbox{inbox}
	case "settles_outside":
		db.Inbox = outsideInbox{inbox}
	case "drops_receipts":
		db.Publish = func(ctx context.Context, messages ...producer.Message) error {
			if key := messages[0].Key; key[len(key)-1] == '7' {
				return nil
			}
			return publish(ctx, messages...)
		}
	case "renames_receipts": // with an inbox that forgets, there are several of a payment
		db.Inbox = forgetfulInbox{inbox}
		db.Publish = func(ctx context.Context, messages ...producer.Message) error {
			messages[0].ID = producer.NewID()
			return publish(ctx, messages...)
		}
	}
}

// forgetfulInbox is an inbox for which every claim is the first.
type forgetfulInbox struct{ dedupstore.Transactor }

func (f forgetfulInbox) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, f.claimOne)
}

func (f forgetfulInbox) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	r.Key.ID += producer.NewID()
	return dedupstore.ClaimOne(ctx, f.Transactor, r)
}

// outsideInbox is an inbox that settles first, and then loses some transactions.
type outsideInbox struct{ dedupstore.Transactor }

func (o outsideInbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	c := runs[0].Claim
	if c.Key.ID[len(c.Key.ID)-1] != '7' {
		return o.Transactor.InTx(ctx, runs, work)
	}
	return nil, dedupstore.SettleOne(ctx, o, c, dedupstore.Finish{
		Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: c.Retention,
	})
}
