package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// newPublisher connects a publisher. Close the client at the end.
func newPublisher(brokers ...string) (*kgo.Client, producer.Publisher, error) {
	cl, err := kgo.NewClient(append(franz.PublisherOpts(), kgo.SeedBrokers(brokers...))...)
	if err != nil {
		return nil, nil, err
	}
	pub, err := franz.NewPublisher(cl, franz.PublisherConfig{})
	return cl, pub, err
}

// place publishes an order. The ID follows from the order, so that whoever places it again, in whatever process, sends
// the same message.
func place(ctx context.Context, pub producer.Publisher, topic string, o shop.Order) error {
	return pub.Publish(ctx, producer.Message{
		ID:      producer.DeriveID("shop/orders", o.ID, "placed"),
		Topic:   topic,
		Key:     o.ID, // messages with one key are in one partition
		Payload: o.JSON(),
	})
}
