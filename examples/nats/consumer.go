package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/billing"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// consume charges orders until ctx ends. Then it drains: charges that have begun are finished and acknowledged.
func consume(ctx context.Context, js jetstream.JetStream, n names, store dedupstore.Store, pub producer.Publisher,
	bank *billing.Bank,
) (err error) {
	policy := oncemill.HighValue()             // charges cost money: their outcomes are remembered for 7 days
	policy.Backoff.Min = 50 * time.Millisecond // the bank is back at once; the default is 1 s
	once, err := consumer.New(store, consumer.Config{
		Group:           "billing",
		DeadLetters:     pub,
		DeadLetterTopic: n.dead(),
		Policy:          policy,
	})
	if err != nil {
		return err
	}
	cons, err := js.CreateOrUpdateConsumer(ctx, n.stream(), jetstream.ConsumerConfig{
		Durable:       "billing",
		FilterSubject: n.orders(),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       30 * time.Second,
		MaxDeliver:    -1, // Oncemill counts attempts, and gives up with a dead letter
	})
	if err != nil {
		return err
	}
	defer shop.Finish(ctx, &err, once.Close) // notes the last duplicates
	worker, err := natsjs.NewWorker(once, js, cons, charge(bank), natsjs.Config{Handler: "charge"})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// charge is the handler. It may get a message again, but not after its outcome is stored. It gets two copies at once
// only if this process stands still for longer than the lease.
func charge(bank *billing.Bank) natsjs.Handler {
	return func(ctx context.Context, msg jetstream.Msg) error {
		order, err := shop.ParseOrder(msg.Data())
		if err != nil {
			return oncemill.Permanent(err) // no attempt can help: a dead letter
		}
		// The charge has one ID in all attempts: a bank that knows it closes the gap between effect and outcome.
		err = bank.Charge(ctx, oncemill.FromContext(ctx).ID("charge"), order)
		if errors.Is(err, billing.ErrDeclined) {
			return oncemill.Permanent(err)
		}
		return err // anything else is tried again, ten times unless the policy says otherwise
	}
}
