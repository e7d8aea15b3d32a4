package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/billing"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// names are what a run calls its things.
type names struct{ run string }

func (n names) stream() string     { return "SHOP-" + n.run }
func (n names) deadStream() string { return "SHOP-DEAD-" + n.run }
func (n names) orders() string     { return "shop." + n.run + ".orders" }
func (n names) dead() string       { return "shop." + n.run + ".dead" }

// A broker is a connection to NATS, and the server if it is in this process.
type broker struct {
	names
	js      jetstream.JetStream
	pub     producer.Publisher
	closing func()
}

func open(ctx context.Context, o billing.Options, dir string) (_ billing.Broker, err error) {
	b := &broker{names: names{o.Run}}
	if o.Embedded {
		o.Address = ""
	}
	if b.js, b.closing, err = shop.OpenNATS(o.Address, dir); err != nil {
		return nil, err
	}
	if err = b.makeStreams(ctx); err == nil {
		b.pub, err = natsjs.NewPublisher(b.js, natsjs.PublisherConfig{})
	}
	if err != nil {
		b.closing()
		return nil, shop.NoServer("nats", shop.Redacted(o.Address), err)
	}
	return b, nil
}

func (b *broker) makeStreams(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	_, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:     b.stream(),
		Subjects: []string{b.orders()},
		MaxAge:   24 * time.Hour, // not longer than outcomes are remembered: replays of older messages would run again
		// The broker's own deduplication, shortened: retries come in tenths of a second here, in hours in production.
		Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	_, err = b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: b.deadStream(), Subjects: []string{b.dead()}})
	return err
}

// Place implements billing.Broker.
func (b *broker) Place(ctx context.Context, o shop.Order) error {
	return place(ctx, b.pub, b.orders(), o)
}

// Consume implements billing.Broker.
func (b *broker) Consume(ctx context.Context, store dedupstore.Store, bank *billing.Bank) error {
	return consume(ctx, b.js, b.names, store, b.pub, bank)
}

// AtRest implements billing.Broker.
func (b *broker) AtRest(ctx context.Context) (bool, error) {
	rest, _, err := shop.AtRest(ctx, b.js, b.stream(), "billing")
	return rest, err
}

// DeadLetters implements billing.Broker.
func (b *broker) DeadLetters(ctx context.Context) ([]shop.Order, error) {
	deadLetters, err := shop.Messages(ctx, b.js, b.deadStream(), b.dead())
	orders := make([]shop.Order, len(deadLetters))
	for i, letter := range deadLetters {
		var bad error
		orders[i], bad = shop.ParseOrder(letter.Data())
		err = errors.Join(err, bad)
	}
	return orders, err
}

// Close implements billing.Broker.
func (b *broker) Close(ctx context.Context) error {
	defer b.closing()
	return errors.Join(b.js.DeleteStream(ctx, b.stream()), b.js.DeleteStream(ctx, b.deadStream()))
}
