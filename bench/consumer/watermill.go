package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
)

// stockRouter is what Watermill users have, without deduplication.
var stockRouter = way{run: func(ctx context.Context, j *task) (func() error, error) {
	return onStock(ctx, j, 1, nil)
}}

// naive is what Watermill users write themselves. The adapter delivers one message at a time to each subscription.
func naive(subscriptions int) way {
	return way{dedup: true, run: func(ctx context.Context, j *task) (func() error, error) {
		return onStock(ctx, j, subscriptions, setBeforeAndAfter(j.rdb))
	}}
}

// onStock runs a Router on the stock adapter. AckAsync is the faster way to acknowledge.
func onStock(ctx context.Context, j *task, subscriptions int, dedup message.HandlerMiddleware) (func() error, error) {
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		Conn: j.conn, Logger: watermill.NopLogger{}, AckAsync: true,
		ResourceInitializer: stock.ExistingConsumer(func(string, string) jetstream.ConsumerConfig {
			return jetstream.ConsumerConfig{Name: durable}
		}, ""),
	})
	if err != nil {
		return nil, err
	}
	return runRouter(ctx, j, sub, subscriptions, dedup)
}

// setBeforeAndAfter is deduplication as it is usually written: it knows no owners, so a holder that was too slow writes
// over its successor.
func setBeforeAndAfter(rdb *redis.Client) message.HandlerMiddleware {
	const lease, window = time.Hour, time.Hour
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, key := msg.Context(), "dedup:"+msg.UUID
			first, err := rdb.SetNX(ctx, key, "pending", lease).Result()
			if err != nil || !first {
				return nil, err
			}
			out, err := next(msg)
			if err != nil {
				return out, err
			}
			return out, rdb.Set(ctx, key, "done", window).Err()
		}
	}
}

// runRouter runs a Router with so many handlers, and returns what ends it.
func runRouter(
	ctx context.Context, j *task, sub message.Subscriber, handlers int, dedup message.HandlerMiddleware,
) (func() error, error) {
	r, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	r.AddMiddleware(j.middleware)
	if dedup != nil {
		r.AddMiddleware(dedup)
	}
	for i := range handlers {
		r.AddConsumerHandler(fmt.Sprintf("charge-%d", i), topic, sub, func(*message.Message) error {
			j.handle()
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() {
		err := r.Run(ctx)
		if err != nil {
			j.settle(err) // nobody else would notice
		}
		ended <- err
	}()
	return func() error { return errors.Join(r.Close(), <-ended) }, nil
}
