package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// One stream has the orders, their prices, and the records of what was done.
const (
	stream  = "ORDERS"
	orders  = "orders.in"
	prices  = "orders.priced."
	records = "orders.once"
)

// A price is one line of an order. Two runs for an order find different ones: the market moves.
type price struct{ Order, Line, Of, Cents int }

// work prices orders until ctx ends. What a run publishes is in the stream as a whole, in one piece, once, or not at
// all.
func work(ctx context.Context, js jetstream.JetStream, between func(order int)) error {
	store, err := natskv.New(js, natskv.Config{Stream: stream, Subject: records})
	if err != nil {
		return err
	}
	return workOver(ctx, js, store, store.Inbox(), between)
}

// workOver does it with a store, and a publisher for the prices. Between is called between two of them.
func workOver(
	ctx context.Context, js jetstream.JetStream, out producer.Publisher, store dedupstore.Store, between func(order int),
) error {
	policy := oncemill.LowValue()
	policy.Lease = 15 * time.Second // a killed worker's orders wait so long; the least that the inbox takes
	once, err := consumer.New(store, consumer.Config{
		Group: "pricing", DeadLetters: out, DeadLetterTopic: "orders.dead", Policy: policy,
	})
	if err != nil {
		return err
	}
	cons, err := js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: "pricing", FilterSubject: orders, // not the prices, and not the records
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: 10 * time.Second, MaxDeliver: -1,
	})
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, msg jetstream.Msg) error {
		order, err := strconv.Atoi(string(msg.Data()))
		if err != nil {
			return oncemill.Permanent(err)
		}
		run := oncemill.FromContext(ctx)
		lines := 2 + order%3
		for i := range lines {
			payload, err := json.Marshal(price{order, i, lines, 1 + rand.IntN(100_000)})
			if err != nil {
				return err
			}
			line := producer.Message{ID: run.ID(fmt.Sprint("line ", i)), Topic: prices + fmt.Sprint(i), Payload: payload}
			if err := out.Publish(ctx, line); err != nil {
				return err
			}
			if run.Attempt == 1 && i == 0 {
				between(order)
			}
		}
		return nil
	}
	worker, err := natsjs.NewWorker(once, js, cons, handle, natsjs.Config{Handler: "price", MaxInFlight: 4})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
