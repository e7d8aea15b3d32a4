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

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A natsBroker is a connection to NATS JetStream, and the server if it is in this process.
type natsBroker struct {
	stream, subject string
	temporary       bool
	embedded        *server.Server
	conn            *nats.Conn
	js              jetstream.JetStream
	pub             producer.Publisher
}

func openNATS(ctx context.Context, o options, subject, dir string) (broker, error) {
	b := &natsBroker{stream: "OUTBOX-" + o.run, subject: subject, temporary: o.temporary()}
	if err := b.open(ctx, o, dir); err != nil {
		b.disconnect()
		return nil, err
	}
	return b, nil
}

func (b *natsBroker) open(ctx context.Context, o options, dir string) error {
	url := o.nats
	if o.embedded {
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
		err = b.makeStream(ctx)
	}
	if err != nil {
		return noServer("nats", shop.Redacted(url), err)
	}
	b.pub, err = natsjs.NewPublisher(b.js, natsjs.PublisherConfig{})
	return err
}

func (b *natsBroker) startServer(dir string) error {
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

func (b *natsBroker) makeStream(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	cfg := jetstream.StreamConfig{Name: b.stream, Subjects: []string{b.subject}, MaxAge: 24 * time.Hour}
	if b.temporary {
		// The stream's own deduplication, by default two minutes, is shortened, so that the books show the copies that
		// relays make: here they come in tenths of a second, after an outage in hours.
		cfg.Duplicates = 100 * time.Millisecond
	}
	_, err := b.js.CreateOrUpdateStream(ctx, cfg)
	return err
}

// publisher implements broker.
func (b *natsBroker) publisher() producer.Publisher { return b.pub }

// events implements broker.
func (b *natsBroker) events(ctx context.Context) ([]received, error) {
	cons, err := b.js.OrderedConsumer(ctx, b.stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{b.subject}})
	if err != nil {
		return nil, err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return nil, err
	}
	var all []received
	for uint64(len(all)) < info.NumPending {
		batch, err := cons.Fetch(int(min(500, info.NumPending-uint64(len(all)))), jetstream.FetchMaxWait(shop.AnswerTime))
		if err != nil {
			return nil, err
		}
		before := len(all)
		for msg := range batch.Messages() {
			e, err := receive(msg.Headers().Get(producer.HeaderID), msg.Data())
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
		if err := batch.Error(); err != nil || len(all) == before {
			return nil, errors.Join(fmt.Errorf("the stream gave %d of %d events", len(all), info.NumPending), err)
		}
	}
	return all, nil
}

// close implements broker.
func (b *natsBroker) close(ctx context.Context) error {
	defer b.disconnect()
	if b.temporary {
		return b.js.DeleteStream(ctx, b.stream)
	}
	return nil
}

func (b *natsBroker) disconnect() {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.embedded != nil {
		b.embedded.Shutdown()
		b.embedded.WaitForShutdown()
	}
}
