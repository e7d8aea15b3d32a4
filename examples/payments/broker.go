package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

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

// durable is the consumer of a stream.
const durable = "consumer"

// A broker is a connection to NATS JetStream.
type broker struct {
	names
	js  jetstream.JetStream
	pub producer.Publisher
}

// connect connects to the server. A connection that loses is that of a consumer: one in ten of its acknowledgements is
// lost.
func connect(o options, loses bool) (*broker, error) {
	var settings []nats.Option
	if loses {
		settings = append(settings, nats.SetCustomDialer(losingDialer{}))
	}
	js, err := shop.ConnectNATS(o.NATS, settings...)
	if err != nil {
		return nil, err
	}
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	return &broker{names{o.Run}, js, pub}, err
}

func (b *broker) makeStreams(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	for _, stream := range [][2]string{
		{b.paymentStream(), b.payments()}, {b.receiptStream(), b.receipts()}, {b.deadStream(), b.dead()},
	} {
		_, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name: stream[0], Subjects: []string{stream[1]},
			MaxAge: 7 * 24 * time.Hour, // not longer than outcomes are remembered: older messages would run again
			// The stream's own deduplication, by default two minutes, is shortened, so that copies get to the
			// consumers: here they come in tenths of a second, after an outage in hours.
			Duplicates: 100 * time.Millisecond,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// consumer makes the durable consumer of a stream, or returns what is there.
func (b *broker) consumer(ctx context.Context, stream string, ackWait time.Duration) (jetstream.Consumer, error) {
	return b.js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable:    durable,
		AckPolicy:  jetstream.AckExplicitPolicy,
		AckWait:    ackWait, // workers extend it for what they work on: this is how long a crashed one's messages wait
		MaxDeliver: -1,      // Oncemill counts attempts, and gives up with a dead letter
	})
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

// remove deletes the streams of the run.
func (b *broker) remove(ctx context.Context) (err error) {
	for _, stream := range []string{b.paymentStream(), b.receiptStream(), b.deadStream()} {
		if e := b.js.DeleteStream(ctx, stream); !errors.Is(e, jetstream.ErrStreamNotFound) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// A losingDialer makes connections that lose one in ten acknowledgements of consumers: they go to a subject where
// nobody listens, and the server delivers the messages again.
type losingDialer struct{}

// Dial implements nats.CustomDialer.
func (losingDialer) Dial(network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: shop.AnswerTime}
	conn, err := dialer.DialContext(context.Background(), network, address) // NATS gives none
	if err != nil {
		return nil, err
	}
	return &losingConn{Conn: conn, every: 10}, nil
}

type losingConn struct {
	net.Conn
	every int64
	seen  atomic.Int64
}

var (
	ackCommand  = []byte("PUB $JS.ACK.")
	lostCommand = []byte("PUB LOST.AC.") // of the same length
	endOfLine   = []byte("\r\n")
	ackPayload  = []byte("+ACK\r\n") // unlike that of messages in progress
)

// Write implements net.Conn. The client writes whole commands.
func (c *losingConn) Write(p []byte) (int, error) {
	out := bytes.Clone(p) // a writer must not change what it is given
	for from := 0; ; {
		i := bytes.Index(out[from:], ackCommand)
		if i < 0 {
			return c.Conn.Write(out)
		}
		at := from + i
		from = at + len(ackCommand)
		_, content, _ := bytes.Cut(out[from:], endOfLine)
		if bytes.HasPrefix(content, ackPayload) && c.seen.Add(1)%c.every == 0 {
			copy(out[at:], lostCommand)
		}
	}
}
