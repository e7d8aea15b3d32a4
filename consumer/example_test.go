package consumer_test

import (
	"context"
	"errors"
	"fmt"

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
	// In a Watermill Router: router.AddMiddleware(once.Middleware). Without one:
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
