package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// names are what a run calls its things.
type names struct{ run string }

func (n names) stream() string     { return "SHOP-" + n.run }
func (n names) deadStream() string { return "SHOP-DEAD-" + n.run }
func (n names) orders() string     { return "shop." + n.run + ".orders" }
func (n names) dead() string       { return "shop." + n.run + ".dead" }

// A broker is a connection to NATS, and the server if it is in this process.
type broker struct {
	names
	options  shop.Options
	embedded *server.Server
	conn     *nats.Conn
	js       jetstream.JetStream
	pub      producer.Publisher
}

func open(ctx context.Context, o shop.Options, dir string) (shop.Broker, error) {
	b := &broker{names: names{o.Run}, options: o}
	if err := b.open(ctx, dir); err != nil {
		b.disconnect()
		return nil, err
	}
	return b, nil
}

func (b *broker) open(ctx context.Context, dir string) error {
	url := b.options.Address
	if b.options.Embedded {
		if err := b.startServer(dir); err != nil {
			return err
		}
		url = b.embedded.ClientURL()
	}
	var err error
	if b.conn, err = nats.Connect(url, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.Timeout(shop.AnswerTime)); err == nil {
		b.js, err = jetstream.New(b.conn)
	}
	if err == nil {
		err = b.makeStreams(ctx)
	}
	if err != nil {
		return shop.NoServer("nats", shop.Redacted(url), err)
	}
	b.pub, err = natsjs.NewPublisher(b.js, natsjs.PublisherConfig{})
	return err
}

func (b *broker) startServer(dir string) error {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(dir, "nats"),
	})
	if err != nil {
		return fmt.Errorf("embedded NATS server: %w", err)
	}
	srv.Start()
	b.embedded = srv
	if !srv.ReadyForConnections(10 * time.Second) {
		return errors.New("embedded NATS server was not ready within 10 s")
	}
	return nil
}

func (b *broker) makeStreams(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	_, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:     b.stream(),
		Subjects: []string{b.orders()},
		MaxAge:   24 * time.Hour, // not longer than outcomes are remembered: replays of older messages would run again
		// The broker's own deduplication, shortened: retries come in tenths of a second here, in hours in production.
		Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	_, err = b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: b.deadStream(), Subjects: []string{b.dead()}})
	return err
}

// Place implements shop.Broker.
func (b *broker) Place(ctx context.Context, o shop.Order) error {
	return place(ctx, b.pub, b.orders(), o)
}

// Repeat implements shop.Broker. Without a Nats-Msg-Id the stream takes every copy.
func (b *broker) Repeat(ctx context.Context, o shop.Order) error {
	msg := nats.NewMsg(b.orders())
	msg.Header.Set(producer.HeaderID, producer.DeriveID("shop/orders", o.ID, "placed"))
	msg.Data = o.JSON()
	_, err := b.js.PublishMsg(ctx, msg)
	return err
}

// hurry is the backoff of an example whose bank is back at once. The zero Backoff, 1 s doubled up to 5 min, is for real ones.
var hurry = oncemill.Backoff{Min: 50 * time.Millisecond}

// Consume implements shop.Broker.
func (b *broker) Consume(ctx context.Context, store dedupstore.Store, bank *shop.Bank) error {
	return consume(ctx, b.js, b.names, store, b.pub, bank, hurry)
}

func (b *broker) consumerInfo(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	cons, err := b.js.Consumer(ctx, b.stream(), "billing")
	if err != nil {
		return nil, err
	}
	return cons.Info(ctx)
}

// AtRest implements shop.Broker.
func (b *broker) AtRest(ctx context.Context) (bool, error) {
	info, err := b.consumerInfo(ctx)
	return err == nil && info.NumPending == 0 && info.NumAckPending == 0, err
}

// Deliveries implements shop.Broker.
func (b *broker) Deliveries(ctx context.Context) (int, error) {
	info, err := b.consumerInfo(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.Delivered.Consumer), nil
}

// DeadLetters implements shop.Broker.
func (b *broker) DeadLetters(ctx context.Context) ([]shop.Order, error) {
	cons, err := b.js.OrderedConsumer(ctx, b.deadStream(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{b.dead()}})
	if err != nil {
		return nil, err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return nil, err
	}
	var orders []shop.Order
	for uint64(len(orders)) < info.NumPending {
		msg, err := cons.Next(jetstream.FetchMaxWait(shop.AnswerTime))
		if err != nil {
			return nil, err
		}
		o, err := shop.ParseOrder(msg.Data())
		if err != nil {
			return nil, err
		}
		orders = append(orders, o)
	}
	return orders, nil
}

// Close implements shop.Broker.
func (b *broker) Close(ctx context.Context) error {
	defer b.disconnect()
	if b.options.Temporary() {
		return errors.Join(b.js.DeleteStream(ctx, b.stream()), b.js.DeleteStream(ctx, b.deadStream()))
	}
	return nil
}

func (b *broker) disconnect() {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.embedded != nil {
		b.embedded.Shutdown()
		b.embedded.WaitForShutdown()
	}
}
