package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func ExampleNewPublisher() {
	ctx := context.Background()
	js, stop, err := natstest.ForExample()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		fmt.Println(err)
		return
	}

	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = pub.Publish(ctx,
		producer.Message{ID: producer.DeriveID("orders", "4711"), Topic: "orders.created", Payload: []byte("{}")},
		producer.Message{ID: "o2", Topic: "invoices"}, // no stream listens
	)
	var failed *producer.PublishError
	if errors.As(err, &failed) {
		for _, f := range failed.Failures {
			fmt.Printf("message %d: unknown %v: %v\n", f.Index, f.Unknown, f.Err)
		}
	}
	// Output: message 1: unknown true: no stream answers for subject "invoices": nats: no response from stream
}

func ExampleNewWorker() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	js, cons, closeServer, err := exampleConsumer(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeServer()

	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // redisstore.New, where more than one process works
	once, err := consumer.New(store, consumer.Config{Group: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	charge := func(_ context.Context, msg jetstream.Msg) error {
		fmt.Printf("charged for %s\n", msg.Data())
		stop() // enough for an example
		return nil
	}
	w, err := natsjs.NewWorker(once, js, cons, charge, natsjs.Config{Handler: "charge", Order: natsjs.ByHeader(producer.HeaderKey)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(w.Run(ctx))
	// Output:
	// charged for order 4711
	// <nil>
}

func ExampleNewSource() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	js, cons, closeServer, err := exampleConsumer(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer closeServer()

	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // redisstore.New, where more than one process works
	once, err := consumer.New(store, consumer.Config{Group: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	source, err := natsjs.NewSource(once, js, natsjs.SourceConfig{
		Consumer: func(context.Context, string) (jetstream.Consumer, error) { return cons, nil }, // one topic only
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(source.Run(ctx, "orders", func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
		d.Handler = "charge"
		once.Start(ctx, d, func(context.Context) error {
			fmt.Printf("charged for %s\n", d.Payload)
			stop() // enough for an example
			return nil
		}, done)
	}))
	// Output:
	// charged for order 4711
	// <nil>
}

// exampleConsumer runs a server with a stream, a message in it and a consumer.
func exampleConsumer(ctx context.Context) (jetstream.JetStream, jetstream.Consumer, func(), error) {
	js, stop, err := natstest.ForExample()
	if err != nil {
		return nil, nil, nil, err
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxAge: 24 * time.Hour})
	if err != nil {
		return nil, nil, nil, err
	}
	cons, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		return nil, nil, nil, err
	}
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		return nil, nil, nil, err
	}
	order := producer.Message{ID: producer.DeriveID("orders", "4711"), Topic: "orders.created", Key: "customer 7", Payload: []byte("order 4711")}
	return js, cons, stop, pub.Publish(ctx, order)
}
