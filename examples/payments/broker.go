package main

import (
	"context"
	"net"
	"regexp"
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

func (n names) stream() string   { return "PAYMENTS-" + n.run }
func (n names) payments() string { return "payments." + n.run + ".taken" }
func (n names) receipts() string { return "payments." + n.run + ".receipts" }
func (n names) dead() string     { return "payments." + n.run + ".dead" }

// A broker is a connection to NATS JetStream.
type broker struct {
	names
	js  jetstream.JetStream
	pub producer.Publisher
}

func connect(o options, dir string, settings ...nats.Option) (*broker, func(), error) {
	js, closing, err := shop.OpenNATS(o.NATS, dir, settings...)
	if err != nil {
		return nil, nil, err
	}
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	return &broker{names{o.Run}, js, pub}, closing, err
}

func (b *broker) makeStream(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	_, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: b.stream(), Subjects: []string{b.payments(), b.receipts(), b.dead()},
		MaxAge: 7 * 24 * time.Hour, // not longer than outcomes are remembered: older messages would run again
		// The stream's own deduplication lasts two minutes by default. Here it is shorter, so that copies reach the
		// consumers: here they come in tenths of a second, after an outage in hours.
		Duplicates: 100 * time.Millisecond,
	})
	return err
}

// A losingDialer makes connections that lose one in ten acknowledgements of consumers.
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

// ack is the command that acknowledges a message, unlike that which says that it is in progress.
var ack = regexp.MustCompile(`PUB \$JS\.ACK\.[^\r]*\r\n\+ACK\r\n`)

// Write implements net.Conn. The client writes whole commands. Those that are to get lost go to a subject of the same
// length where nobody listens, and the server delivers the messages again.
func (c *losingConn) Write(p []byte) (int, error) {
	return c.Conn.Write(ack.ReplaceAllFunc(p, func(command []byte) []byte {
		if c.seen.Add(1)%c.every != 0 {
			return command
		}
		const lost = "PUB LOST.AC."
		return append([]byte(lost), command[len(lost):]...)
	}))
}
