package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

func ExampleNew() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // in production: redisstore.New
	if err != nil {
		panic(err)
	}
	once, err := consumer.New(store, consumer.Config{Group: "billing"})
	if err != nil {
		panic(err)
	}
	delivery := consumer.Delivery{
		Handler: "charge", Topic: "orders",
		Header:  producer.Header{producer.HeaderID: "order-17"},
		Payload: []byte(`{"cents":4200}`),
	}
	for range 2 {
		d := once.Process(context.Background(), delivery, func(ctx context.Context) error {
			fmt.Println("charging, attempt", oncemill.FromContext(ctx).Attempt)
			return nil
		})
		fmt.Println(d.Action, "duplicate:", d.Result.Duplicate)
	}
	// Output:
	// charging, attempt 1
	// ack duplicate: false
	// ack duplicate: true
}

func ExampleProcessor_Process_failures() {
	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	once, _ := consumer.New(store, consumer.Config{Group: "billing"})
	delivery := consumer.Delivery{Handler: "charge", Topic: "orders", Header: producer.Header{producer.HeaderID: "order-18"}}
	for range 2 {
		d := once.Process(context.Background(), delivery, func(context.Context) error {
			fmt.Println("charging")
			return oncemill.Permanent(errors.New("card stolen"))
		})
		fmt.Println(d.Action, d.Err)
	}
	// Output:
	// charging
	// reject oncemill: failed: card stolen
	// reject oncemill: failed: card stolen
}

func ExampleRerun() {
	ctx := context.Background()
	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	var topics inMemory // in production a natsjs.Publisher, and a consumer of the dead letters
	policy := oncemill.Irreversible()
	policy.Logger = slog.New(slog.DiscardHandler)
	once, _ := consumer.New(store, consumer.Config{
		Group: "billing", Policy: policy, DeadLetters: &topics, DeadLetterTopic: "dead.billing",
	})
	bank := map[string]error{
		"order-19": oncemill.Permanent(errors.New("above today's limit")),
		"order-20": errors.New("the answer is lost"),
	}
	work := func(header producer.Header, payload []byte) {
		d := once.Process(ctx, consumer.Delivery{
			Handler: "charge", Topic: "orders", Header: header, Payload: payload,
		}, func(ctx context.Context) error {
			run := oncemill.FromContext(ctx)
			fmt.Printf("charge %s, idempotency key %.8s…\n", run.Key.ID, run.ID("charge"))
			return bank[run.Key.ID]
		})
		fmt.Println(d.Action, d.Result.Outcome.Kind)
	}
	work(producer.Header{producer.HeaderID: "order-19"}, []byte("order 19"))
	work(producer.Header{producer.HeaderID: "order-20"}, []byte("order 20"))

	// The operator's loop, on the next day.
	clear(bank)
	for _, dead := range topics.take("dead.billing") {
		if dead.Header.Get(producer.HeaderOutcome) == string(dedupstore.Unknown) {
			fmt.Println("ask the bank about", dead.Header.Get(producer.HeaderOriginalID)) // a rerun may charge twice
			continue
		}
		again, err := consumer.Rerun(dead)
		if err != nil {
			fmt.Println(err) // says what to do instead
			continue
		}
		if err := topics.Publish(ctx, again); err != nil {
			fmt.Println(err)
			continue // the dead letter stays
		}
		// Now, and not before: acknowledge or delete the dead letter.
	}
	for _, m := range topics.take("orders") {
		work(m.Header, m.Payload)
		work(m.Header, m.Payload) // a copy
	}
	// Output:
	// charge order-19, idempotency key cf86fa2d…
	// ack failed
	// charge order-20, idempotency key 0a4fe013…
	// ack unknown
	// ask the bank about order-20
	// charge order-19, idempotency key cf86fa2d…
	// ack succeeded
	// ack succeeded
}

// inMemory are topics for examples.
type inMemory struct{ messages []producer.Message }

func (t *inMemory) Publish(_ context.Context, messages ...producer.Message) error {
	t.messages = append(t.messages, messages...)
	return nil
}

// take removes and returns the messages of a topic.
func (t *inMemory) take(topic string) []producer.Message {
	var taken, rest []producer.Message
	for _, m := range t.messages {
		if m.Topic == topic {
			taken = append(taken, m)
		} else {
			rest = append(rest, m)
		}
	}
	t.messages = rest
	return taken
}
