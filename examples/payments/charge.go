package main

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// charge books payments until ctx ends. Then it drains: what has begun is committed and acknowledged.
func charge(ctx context.Context, o options, b *broker, db database, pub producer.Publisher) error {
	once, err := consumer.New(db.inbox(), consumer.Config{
		Group: "ledger", DeadLetters: pub, DeadLetterTopic: b.dead(), Policy: o.policy(),
	})
	if err != nil {
		return err
	}
	cons, err := b.consumer(ctx, b.paymentStream(), ledgerConsumer, o.lease)
	if err != nil {
		return err
	}
	worker, err := natsjs.NewWorker(once, b.js, cons, bookPayment(db, b.receipts()), natsjs.Config{Handler: "book-payment", MaxInFlight: window})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// bookPayment is the handler. All that it writes is committed together with its outcome, or not at all.
func bookPayment(db database, receipts string) natsjs.Handler {
	return func(ctx context.Context, msg jetstream.Msg) error {
		p, err := parsePayment(msg.Data())
		if err != nil {
			return oncemill.Permanent(err) // no attempt can help: a dead letter
		}
		if err := db.book(ctx, p); err != nil {
			return err
		}
		if p.Cents > limit {
			return oncemill.Permanent(errOverLimit) // takes back what was booked; that it failed is remembered
		}
		id := oncemill.FromContext(ctx).ID("receipt") // the same in all attempts
		return db.publish(ctx, receipt{p.ID, p.Cents}.message(id, receipts))
	}
}

// window is how many messages a process works on at once, and so what a crash can hit.
const window = 32

// policy is for money: outcomes are remembered for a week.
func (o options) policy() oncemill.Policy {
	p := oncemill.HighValue()
	p.Lease = o.lease
	p.MaxAttempts = 100                                                             // crashed runs count, and this example is about crashes
	p.Backoff = oncemill.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second} // the defaults: 1 s, 5 min
	return p
}
