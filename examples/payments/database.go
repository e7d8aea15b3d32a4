package main

import (
	"context"
	"errors"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A database keeps payments, the ledger, the outbox and the inbox. It is safe for concurrent use.
type database interface {
	// place writes a payment and its event, both or neither. It reports false for a payment that is there already. After an
	// error other than errOther, whoever wants to pay has to ask again.
	place(ctx context.Context, p payment, topic string) (placed bool, err error)

	// book writes the ledger in the transaction that ctx carries.
	book(ctx context.Context, p payment) error

	// publish writes a message into the outbox in the transaction that ctx carries.
	publish(ctx context.Context, m producer.Message) error

	// outbox is where relays find messages.
	outbox() box

	// inbox is the store whose transactions book is for.
	inbox() dedupstore.Transactor

	// leased is the store for handlers whose effects are elsewhere.
	leased() dedupstore.Store

	// clean forgets old outcomes until ctx ends.
	clean(ctx context.Context) error

	// ledger returns everything that is committed.
	ledger(ctx context.Context) (*ledger, error)

	// close removes what the run has made, if it is told to, and disconnects.
	close(ctx context.Context, remove bool) error
}

// errOther says that a payment's ID belongs to one that differs. Asking again is useless.
var errOther = errors.New("the ID belongs to a payment that differs")

// A box is an outbox that can be woken, and looked into.
type box interface {
	outbox.Store
	outbox.Inspector
	Wake()
}

// A ledger is what the books are made from.
type ledger struct {
	payments map[string]payment // by ID
	entries  []entry
	balances map[string]int64 // by account
}

// An entry is one line of the double-entry ledger.
type entry struct {
	payment, account string
	cents            int64
}

// openDatabase opens the database of the flags, and makes tables unless somebody has.
func openDatabase(ctx context.Context, o options) (database, error) {
	if o.sqlite != "" {
		return openSQLite(ctx, o)
	}
	return openPostgres(ctx, o)
}
