package main

import (
	"context"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// breakages are what tests of the books break in all processes of a run, by its name.
var breakages = map[string]func(database) database{
	"forgets":          func(db database) database { return forgets{db} },
	"settles_outside":  func(db database) database { return settlesOutside{db} },
	"drops_receipts":   func(db database) database { return drops{db} },
	"renames_receipts": func(db database) database { return renames{forgets{db}} },
}

// forgets has an inbox for which every claim is the first.
type forgets struct{ database }

func (f forgets) inbox() dedupstore.Transactor { return forgetfulInbox{f.database.inbox()} }

type forgetfulInbox struct{ dedupstore.Transactor }

func (f forgetfulInbox) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	r.Key.ID += producer.NewID()
	return f.Transactor.Claim(ctx, r)
}

// settlesOutside has an inbox that settles first, and then loses some transactions.
type settlesOutside struct{ database }

func (s settlesOutside) inbox() dedupstore.Transactor { return outsideInbox{s.database.inbox()} }

type outsideInbox struct{ dedupstore.Transactor }

func (o outsideInbox) InTx(ctx context.Context, c dedupstore.Claim, work func(context.Context) (dedupstore.Settlement, error)) error {
	if c.Key.ID[len(c.Key.ID)-1] != '7' {
		return o.Transactor.InTx(ctx, c, work)
	}
	return o.Settle(ctx, c, dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: c.Retention})
}

// drops does not write some messages of transactions.
type drops struct{ database }

func (d drops) publish(ctx context.Context, m producer.Message) error {
	if m.Key[len(m.Key)-1] == '7' {
		return nil
	}
	return d.database.publish(ctx, m)
}

// renames gives each message a new ID. With forgets, there are several of a payment.
type renames struct{ database }

func (r renames) publish(ctx context.Context, m producer.Message) error {
	m.ID = producer.NewID()
	return r.database.publish(ctx, m)
}
