package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
)

const forwarderTopic = "forward" // in the names of its tables, too

// watermillForwarder is Watermill's outbox: a topic in the database whose messages the Forwarder publishes.
type watermillForwarder struct {
	pool      *pgxpool.Pool
	publisher *forwarder.Publisher
}

var (
	forwarderSchema = sql.DefaultPostgreSQLSchema{SubscribeBatchSize: 100}
	forwarderConfig = sql.SubscriberConfig{
		SchemaAdapter: forwarderSchema, OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
		PollInterval: 10 * time.Millisecond,
	}
)

func (w *watermillForwarder) install(ctx context.Context) error {
	if err := w.uninstall(ctx); err != nil {
		return err
	}
	p, err := sql.NewPublisher(sql.BeginnerFromPgx(w.pool), sql.PublisherConfig{SchemaAdapter: forwarderSchema, AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	w.publisher = forwarder.NewPublisher(p, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic})
	s, err := w.subscriber()
	if err != nil {
		return err
	}
	return errors.Join(s.SubscribeInitialize(forwarderTopic), s.Close())
}

func (w *watermillForwarder) subscriber() (*sql.Subscriber, error) {
	return sql.NewSubscriber(sql.BeginnerFromPgx(w.pool), forwarderConfig, watermill.NopLogger{})
}

func (w *watermillForwarder) uninstall(ctx context.Context) error {
	_, err := w.pool.Exec(ctx, `DROP TABLE IF EXISTS watermill_`+forwarderTopic+`, watermill_offsets_`+forwarderTopic)
	return err
}

func (w *watermillForwarder) write(_ context.Context, payload []byte) error {
	return w.publisher.Publish(topic, message.NewMessage(watermill.NewUUID(), payload))
}

func (w *watermillForwarder) relay(ctx context.Context, conn *nats.Conn) (stop func() error, err error) {
	out, err := stock.NewPublisher(stock.PublisherConfig{Conn: conn, Logger: watermill.NopLogger{}})
	if err != nil {
		return nil, err
	}
	s, err := w.subscriber()
	if err != nil {
		return nil, err
	}
	f, err := forwarder.NewForwarder(s, out, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarderTopic})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	return func() error { return errors.Join(f.Close(), s.Close(), <-ended) }, nil
}

// left is 0: the stream is what says how far it is. Its offsets may lag by a batch.
func (w *watermillForwarder) left(context.Context) (int, error) { return 0, nil }
