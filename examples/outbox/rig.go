package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// reserving takes goods from the warehouse. Its error takes back the transaction that it is called in.
type reserving func(ctx context.Context, o shop.Order) error

// A database keeps orders and, in an outbox, their events. It is safe for concurrent use.
type database interface {
	// place is a placing.
	place(ctx context.Context, o shop.Order) (placed bool, err error)

	// outbox is where the relay finds the events.
	outbox() box

	// orders returns what is committed, by ID.
	orders(ctx context.Context) (map[string]shop.Order, error)

	// close removes what a temporary run has made, and disconnects.
	close(ctx context.Context) error
}

// A box is an outbox that can be looked into.
type box interface {
	outbox.Store
	outbox.Inspector
}

// A broker gets the events. It is safe for concurrent use.
type broker interface {
	// publisher publishes there.
	publisher() producer.Publisher

	// events returns everything that is there, copies included.
	events(ctx context.Context) ([]received, error)

	// close removes what a temporary run has made, and disconnects.
	close(ctx context.Context) error
}

// A received event is one as consumers get it.
type received struct {
	id    string // of the message
	order shop.Order
}

func receive(id string, payload []byte) (received, error) {
	o, err := shop.ParseOrder(payload)
	return received{id, o}, err
}

// A rig is what the service stands on.
type rig struct {
	place     placing
	database  database
	publisher producer.Publisher
	broker    broker
}

func openRig(ctx context.Context, o options, dir string, reserve reserving) (*rig, error) {
	var r rig
	var err error
	topic := o.topic()
	if o.embedded {
		r.database, err = openSQLite(ctx, dir, topic, reserve)
	} else {
		r.database, err = openPostgres(ctx, o, topic, reserve)
	}
	if err != nil {
		return nil, err
	}
	if o.broker == "kafka" {
		r.broker, err = openKafka(ctx, o, topic)
	} else {
		r.broker, err = openNATS(ctx, o, topic, dir)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		return nil, errors.Join(err, r.database.close(ctx))
	}
	r.place, r.publisher = r.database.place, r.broker.publisher()
	return &r, nil
}

func (r *rig) close(ctx context.Context) error {
	return errors.Join(r.broker.close(ctx), r.database.close(ctx))
}

// noServer says that the server at the address in a flag cannot be used.
func noServer(flagName, address string, err error) error {
	return fmt.Errorf("the server at -%s %s cannot be used: %w\n(`docker compose --profile kafka up -d --wait` starts PostgreSQL, NATS and Kafka; -embedded needs none)", flagName, address, err)
}
