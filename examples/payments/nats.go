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

// names are what a run calls its things in NATS.
type names struct{ run string }

func (n names) payments() string { return "payments." + n.run + ".taken" }
func (n names) receipts() string { return "payments." + n.run + ".receipts" }
func (n names) dead() string     { return "payments." + n.run + ".dead" }

func (n names) paymentStream() string { return "PAYMENTS-" + n.run }
func (n names) receiptStream() string { return "RECEIPTS-" + n.run }
func (n names) deadStream() string    { return "PAYMENTS-DEAD-" + n.run }

// The durable consumers.
const (
	ledgerConsumer = "ledger"
	notifyConsumer = "notify"
)

// A broker is a connection to NATS JetStream.
type broker struct {
	names
	conn *nats.Conn
	js   jetstream.JetStream
}

// connect connects to the server, and makes streams unless somebody has.
func connect(ctx context.Context, o options) (*broker, error) {
	b := &broker{names: names{o.run}}
	settings := []nats.Option{nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.Timeout(shop.AnswerTime)}
	if o.lose > 0 {
		settings = append(settings, nats.SetCustomDialer(&losingDialer{every: o.lose}))
	}
	var err error
	if b.conn, err = nats.Connect(o.nats, settings...); err == nil {
		b.js, err = jetstream.New(b.conn)
	}
	if err == nil && !o.child {
		err = b.makeStreams(ctx)
	}
	if err != nil {
		b.close()
		return nil, shop.NoServer("nats", shop.Redacted(o.nats), err)
	}
	return b, nil
}

func (b *broker) makeStreams(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	for _, stream := range []struct{ name, subject, durable string }{
		{b.paymentStream(), b.payments(), ledgerConsumer}, {b.receiptStream(), b.receipts(), notifyConsumer}, {b.deadStream(), b.dead(), ""},
	} {
		_, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: stream.name, Subjects: []string{stream.subject},
			MaxAge: 7 * 24 * time.Hour, // not longer than outcomes are remembered: replays of older messages would run again
			// The stream's own deduplication, by default two minutes, is shortened, so that copies get to the consumers: here
			// they come in tenths of a second, after an outage in hours.
			Duplicates: 100 * time.Millisecond,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// consumer makes the durable consumer of a stream, or returns what is there.
func (b *broker) consumer(ctx context.Context, stream, durable string, ackWait time.Duration) (jetstream.Consumer, error) {
	return b.js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable:   durable,
		AckPolicy: jetstream.AckExplicitPolicy,
		AckWait:   ackWait, // workers extend it for what they work on: this is how long a crashed one's messages wait
		// Oncemill counts attempts, and gives up with a dead letter.
		MaxDeliver: -1,
	})
}

// publisher publishes, and loses some acknowledgements if the flags say so.
func (b *broker) publisher(o options) (producer.Publisher, error) {
	pub, err := natsjs.NewPublisher(b.js, natsjs.PublisherConfig{})
	if err != nil || o.lose == 0 {
		return pub, err
	}
	return &forgetful{Publisher: pub, every: o.lose, lost: map[string]bool{}}, nil
}

// repeat publishes a payment's message once more, as somebody does who does not know that it is there. Without a
// Nats-Msg-Id the stream takes every copy.
func (b *broker) repeat(ctx context.Context, p payment) error {
	msg := nats.NewMsg(b.payments())
	msg.Header.Set(producer.HeaderID, p.ID)
	msg.Data = p.JSON()
	_, err := b.js.PublishMsg(ctx, msg)
	return err
}

// atRest reports whether everything in a stream is acknowledged by its consumer.
func (b *broker) atRest(ctx context.Context, stream, durable string) (done bool, deliveries uint64, err error) {
	cons, err := b.js.Consumer(ctx, stream, durable)
	if err != nil {
		return false, 0, err
	}
	info := cons.CachedInfo()
	return info.NumPending == 0 && info.NumAckPending == 0, info.Delivered.Consumer, nil
}

// A letter is a message as it lies in a stream.
type letter struct {
	id   string
	data []byte
}

// letters returns everything in a stream, copies included.
func (b *broker) letters(ctx context.Context, stream string) ([]letter, error) {
	cons, err := b.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return nil, err
	}
	var all []letter
	for uint64(len(all)) < info.NumPending {
		batch, err := cons.Fetch(int(min(500, info.NumPending-uint64(len(all)))), jetstream.FetchMaxWait(shop.AnswerTime))
		if err != nil {
			return nil, err
		}
		before := len(all)
		for msg := range batch.Messages() {
			all = append(all, letter{msg.Headers().Get(producer.HeaderID), msg.Data()})
		}
		if err := batch.Error(); err != nil || len(all) == before {
			return nil, errors.Join(fmt.Errorf("the stream gave %d of %d messages", len(all), info.NumPending), err)
		}
	}
	return all, nil
}

// remove deletes the streams of the run.
func (b *broker) remove(ctx context.Context) error {
	var errs []error
	for _, stream := range []string{b.paymentStream(), b.receiptStream(), b.deadStream()} {
		errs = append(errs, b.js.DeleteStream(ctx, stream))
	}
	return errors.Join(errs...)
}

func (b *broker) close() {
	if b.conn != nil {
		b.conn.Close()
	}
}

// startNATS runs a server in this process.
func startNATS(dir string) (*server.Server, error) {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(dir, "nats"),
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		stopNATS(srv)
		return nil, errors.New("embedded NATS server was not ready within 10 s")
	}
	return srv, nil
}

func stopNATS(srv *server.Server) {
	srv.Shutdown()
	srv.WaitForShutdown()
}
