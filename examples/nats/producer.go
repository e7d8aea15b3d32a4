package main

import (
	"context"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// place publishes an order. The ID follows from the order, so that whoever places it again, in whatever process, sends
// the same message. The publisher is made once: natsjs.NewPublisher(js, natsjs.PublisherConfig{}).
func place(ctx context.Context, pub producer.Publisher, subject string, o shop.Order) error {
	return pub.Publish(ctx, producer.Message{
		ID:      producer.DeriveID("shop/orders", o.ID, "placed"),
		Topic:   subject,
		Payload: o.JSON(),
	})
}
