package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/billing"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// consume charges orders until ctx ends. Then it drains: charges that have begun are finished and committed. The
// options say how to reach Kafka, such as kgo.SeedBrokers.
func consume(ctx context.Context, n names, store dedupstore.Store, pub producer.Publisher,
	bank *billing.Bank, reach ...kgo.Opt,
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
	defer shop.Finish(ctx, &err, once.Close) // notes the last duplicates
	worker, err := franz.NewWorker(once, charge(bank), franz.Config{Handler: "charge"})
	if err != nil {
		return err
	}
	options := append(worker.Opts(), kgo.ConsumerGroup(n.group()), kgo.ConsumeTopics(n.orders()))
	cl, err := kgo.NewClient(append(options, reach...)...)
	if err != nil {
		return err
	}
	defer cl.CloseAllowingRebalance()
	return worker.Run(ctx, cl)
}

// charge is the handler. It may get a record again, but not after its outcome is stored. It gets two copies at once
// only if this process stands still for longer than the lease.
func charge(bank *billing.Bank) franz.Handler {
	return func(ctx context.Context, record *kgo.Record) error {
		order, err := shop.ParseOrder(record.Value)
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
