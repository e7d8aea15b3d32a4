package main

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// names are what a run calls its things at servers that others may use too.
type names struct{ run string }

func (n names) stream() string               { return "SHOP-" + n.run }
func (n names) orders() string               { return "shop." + n.run + ".orders" }
func (n names) dead(stack string) string     { return "shop." + n.run + ".dead." + stack }
func (n names) receipts(stack string) string { return "shop." + n.run + ".receipts." + stack }

// A broker is a connection to NATS JetStream, embedded in this process unless a URL is given.
type broker struct {
	names     names
	url       string
	temporary bool
	js        jetstream.JetStream
	publisher producer.Publisher
	closing   func()
}

func openBroker(ctx context.Context, n names, o options, telemetry oncemill.Telemetry) (b *broker, err error) {
	b = &broker{names: n, temporary: o.temporary}
	if b.js, b.closing, err = shop.OpenNATS(o.nats, o.dir, reconnects); err != nil {
		return nil, err
	}
	b.url = cmp.Or(o.nats, b.js.Conn().ConnectedUrl())
	_, err = b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:     n.stream(),
		Subjects: []string{"shop." + n.run + ".>"},
		// The broker's own deduplication, shortened: the retries of this demo come in seconds, real ones in hours.
		Duplicates: 100 * time.Millisecond,
	})
	if err == nil {
		b.publisher, err = natsjs.NewPublisher(b.js, natsjs.PublisherConfig{
			Logger:    slog.New(slog.DiscardHandler), // repeats are what this demo is made of
			Telemetry: telemetry,
		})
	}
	if err != nil {
		b.closing()
		return nil, shop.NoServer("nats", shop.Redacted(b.url), err)
	}
	return b, nil
}

// reconnects makes connections come back soon.
var reconnects = nats.ReconnectWait(100 * time.Millisecond)

// close removes what a temporary run has stored at the broker.
func (b *broker) close(ctx context.Context) error {
	defer b.closing()
	if b.temporary {
		return b.js.DeleteStream(ctx, b.names.stream())
	}
	return nil
}
