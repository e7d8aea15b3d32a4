package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/producer"
)

const (
	topic        = "orders" // stream and subject
	durable      = "billing"
	payloadBytes = 256
)

// consumerConfig is the same for all variants.
var consumerConfig = jetstream.ConsumerConfig{
	Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 60 * time.Second, MaxAckPending: 2000,
}

// prepare fills a new stream, and makes a consumer that has nothing yet, and fresh clients.
func (r *rig) prepare(ctx context.Context, messages int) (*task, error) {
	filler, err := nats.Connect(r.nats.URL)
	if err != nil {
		return nil, err
	}
	defer filler.Close()
	if err := fill(ctx, filler, messages); err != nil {
		return nil, fmt.Errorf("fill the stream: %w", err)
	}
	conn, err := nats.Connect(r.nats.URL)
	if err != nil {
		return nil, err
	}
	j := &task{
		meter: newMeter(messages), conn: conn,
		rdb: redis.NewClient(&redis.Options{Addr: r.redis.Addr, PoolSize: 256, ContextTimeoutEnabled: true}),
	}
	if j.js, err = jetstream.New(conn); err == nil {
		j.consumer, err = j.js.CreateConsumer(ctx, topic, consumerConfig)
	}
	if err == nil {
		err = j.rdb.Ping(ctx).Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	runtime.GC() // what filling has left
	return j, nil
}

// fill replaces the stream by one with so many messages. They have the IDs that both subscribers look for.
func fill(ctx context.Context, conn *nats.Conn, messages int) error {
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(2000))
	if err != nil {
		return err
	}
	stream, err := kit.FreshStream(ctx, js, jetstream.StreamConfig{
		Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage,
		MaxAge: time.Hour, // less than the window, or the transport warns
	})
	if err != nil {
		return err
	}
	payload := []byte(strings.Repeat("x", payloadBytes))
	for range messages {
		id := watermill.NewUUID()
		m := &nats.Msg{Subject: topic, Data: payload, Header: nats.Header{
			wmnats.WatermillUUIDHdr: {id}, producer.HeaderID: {id}, "type": {"order.created"},
		}}
		if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(waitLimit)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	info, err := stream.Info(ctx)
	if err == nil && info.State.Msgs != uint64(messages) {
		return fmt.Errorf("the stream has %d messages, want %d", info.State.Msgs, messages)
	}
	return err
}

// acknowledged waits until the server has every acknowledgement.
func (j *task) acknowledged(ctx context.Context) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); ; {
		info, err := j.consumer.Info(ctx)
		if err != nil {
			return err
		}
		if info.AckFloor.Stream == uint64(j.messages) && info.NumPending == 0 && info.NumAckPending == 0 {
			return nil
		}
		if time.Since(begun) > 10*time.Second {
			return fmt.Errorf("%d messages are not acknowledged, %d not delivered", info.NumAckPending, info.NumPending)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
