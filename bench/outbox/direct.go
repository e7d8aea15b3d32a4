package main

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// direct is no outbox: who commits publishes afterwards, and what is between is lost in a crash. It shows what the machine
// and the servers take.
type direct struct {
	*ours
	publisher producer.Publisher
}

func (d *direct) relay(_ context.Context, conn *nats.Conn) (stop func() error, err error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	d.publisher, err = natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	return func() error { return nil }, err
}

func (d *direct) publish(ctx context.Context, payload []byte) error {
	return d.publisher.Publish(ctx, producer.Message{ID: producer.NewID(), Topic: topic, Payload: payload})
}

// left is 0: nobody relays the rows.
func (d *direct) left(context.Context) (int, error) { return 0, nil }
