package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/bank"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// takePayments is the service: POST /payments. Clients repeat a request until it has an answer below 500.
func takePayments(db *database, topic string) http.Handler {
	return shop.Taking("POST /payments", func(ctx context.Context, body []byte) (placed bool, err error) {
		p, err := parsePayment(body)
		if err != nil {
			return false, shop.Refusal{Status: http.StatusBadRequest, Text: err.Error()}
		}
		return db.place(ctx, p, topic)
	})
}

// relay publishes what is in the outbox until ctx ends, and then drains.
func relay(ctx context.Context, store outbox.Store, pub producer.Publisher) error {
	r, err := outbox.NewRelay(store, pub, outbox.Config{
		PollInterval: 100 * time.Millisecond, // rows of other processes wait for this; the default is 1 s

		Backoff: oncemill.Backoff{Min: 300 * time.Millisecond}, // the default is 1 s
		// A dead relay's rows are taken over after 6 s. The defaults suit brokers that fail over: 30 s, 10 s, 1 min.
		PublishTimeout: 2 * time.Second, Lease: 6 * time.Second,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// A making makes a worker for the messages of a consumer.
type making func(*consumer.Processor, jetstream.Consumer) (*natsjs.Worker, error)

// work has a worker handle the messages of a subject until ctx ends. Then it drains: what has begun is acknowledged.
func (b *broker) work(
	ctx context.Context, o options, store dedupstore.Store, name, subject string, making making,
) (err error) {
	once, err := consumer.New(store, consumer.Config{
		Group: "payments", DeadLetters: b.pub, DeadLetterTopic: b.dead(), Policy: o.policy(),
	})
	if err != nil {
		return err
	}
	defer shop.Finish(ctx, &err, once.Close) // notes the last duplicates
	cons, err := b.js.CreateOrUpdateConsumer(ctx, b.stream(), jetstream.ConsumerConfig{
		Durable:       name,
		FilterSubject: subject,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       o.Lease, // workers extend it for what they work on: so long a crashed one's messages wait
		MaxDeliver:    -1,      // Oncemill counts attempts, and gives up with a dead letter
	})
	if err != nil {
		return err
	}
	worker, err := making(once, cons)
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

func (b *broker) callers(handle natsjs.Handler) making {
	return func(once *consumer.Processor, cons jetstream.Consumer) (*natsjs.Worker, error) {
		return natsjs.NewWorker(once, b.js, cons, handle, natsjs.Config{Handler: notify, MaxInFlight: window})
	}
}

func (b *broker) bookers(o options, handle natsjs.BatchHandler) making {
	config := natsjs.BatchConfig{Config: natsjs.Config{Handler: charge, MaxInFlight: window}, MaxBatch: o.Batch}
	return func(once *consumer.Processor, cons jetstream.Consumer) (*natsjs.Worker, error) {
		return natsjs.NewBatchWorker(once, b.js, cons, handle, config)
	}
}

// bookPayments is the handler. All that it writes is committed together with the outcomes, or nothing is. If one
// payment fails, each is booked by itself.
func bookPayments(db *database, receipts string) natsjs.BatchHandler {
	return func(ctx context.Context, msgs []jetstream.Msg) []error {
		payments, errs := make([]payment, len(msgs)), make([]error, len(msgs))
		made := make([]producer.Message, len(msgs))
		for i, run := range oncemill.RunsFromContext(ctx) {
			p, err := parsePayment(msgs[i].Data())
			if err == nil && p.Cents > limit {
				err = errOverLimit
			}
			if err != nil {
				errs[i] = oncemill.Permanent(err) // no attempt can help: a dead letter
			}
			id := run.ID("receipt") // the same in all attempts
			payments[i], made[i] = p, receipt{p.ID, p.Cents}.message(id, receipts)
		}
		if err := errors.Join(errs...); err != nil {
			return errs
		}
		if err := cmp.Or(db.book(ctx, payments), db.Publish(ctx, made...)); err != nil {
			return []error{err}
		}
		return nil
	}
}

// callAPI is the handler. However often it calls, the idempotency key is the same.
func callAPI(api *bank.Client) natsjs.Handler {
	return func(ctx context.Context, msg jetstream.Msg) error {
		var r receipt
		if err := json.Unmarshal(msg.Data(), &r); err != nil {
			return oncemill.Permanent(fmt.Errorf("this is not a receipt: %w", err))
		}
		return api.Transfer(ctx, oncemill.FromContext(ctx).ID("transfer"), bank.Transfer(r))
	}
}

// window is how many messages a process works on at once, and so what a crash can hit.
const window = 32

// policy is for money: outcomes are remembered for a week.
func (o options) policy() oncemill.Policy {
	p := oncemill.HighValue()
	p.Lease = o.Lease
	p.MaxAttempts = 100 // crashed runs count, and this example is about crashes

	// The defaults are 1 s and 5 min.
	p.Backoff = oncemill.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	return p
}
