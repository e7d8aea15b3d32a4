package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// names are what a run of the demo calls its things at servers that others may use too.
type names struct{ run string }

func (n names) stream() string               { return "SHOP-" + n.run }
func (n names) orders() string               { return "shop." + n.run + ".orders" }
func (n names) dead(stack string) string     { return "shop." + n.run + ".dead." + stack }
func (n names) receipts(stack string) string { return "shop." + n.run + ".receipts." + stack }

// A broker is a connection to NATS JetStream, embedded in this process unless a URL is given.
type broker struct {
	names    names
	url      string
	conn     *nats.Conn
	js       jetstream.JetStream
	embedded *server.Server
}

func startBroker(ctx context.Context, n names, url, dir string) (*broker, error) {
	b := &broker{names: n, url: url}
	if url == "" {
		srv, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: filepath.Join(dir, "nats"),
		})
		if err != nil {
			return nil, fmt.Errorf("embedded NATS server: %w", err)
		}
		srv.Start()
		if !srv.ReadyForConnections(10 * time.Second) {
			srv.Shutdown()
			return nil, fmt.Errorf("embedded NATS server was not ready within 10 s")
		}
		b.embedded, b.url = srv, srv.ClientURL()
	}
	conn, err := b.connect()
	if err == nil {
		b.conn = conn
		b.js, err = jetstream.New(conn)
	}
	if err == nil {
		_, err = b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
			Name:     n.stream(),
			Subjects: []string{"shop." + n.run + ".>"},
			// The broker's own deduplication, shortened: the retries of this demo come in seconds, real ones in hours.
			Duplicates: 100 * time.Millisecond,
		})
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("NATS at %s: %w", redacted(b.url), err)
	}
	return b, nil
}

// connect opens a connection that comes back by itself when the server does.
func (b *broker) connect() (*nats.Conn, error) {
	return nats.Connect(b.url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.Timeout(5*time.Second))
}

// publishCopy publishes a copy of an order's event past the outbox, as a producer does that retries on its own.
func (b *broker) publishCopy(ctx context.Context, id string, payload []byte) error {
	msg := nats.NewMsg(b.names.orders())
	msg.Header.Set("oncemill-id", id)
	msg.Data = payload
	_, err := b.js.PublishMsg(ctx, msg)
	return err
}

// deadLetters returns the messages that a stack has dead-lettered.
func (b *broker) deadLetters(ctx context.Context, stack string) ([]jetstream.Msg, error) {
	cons, err := b.js.OrderedConsumer(ctx, b.names.stream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{b.names.dead(stack)},
	})
	if err != nil {
		return nil, err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return nil, err
	}
	var letters []jetstream.Msg
	for uint64(len(letters)) < info.NumPending {
		msg, err := cons.Next(jetstream.FetchMaxWait(5 * time.Second))
		if err != nil {
			return nil, fmt.Errorf("read dead letters of %s: %w", stack, err)
		}
		letters = append(letters, msg)
	}
	return letters, nil
}

// remove deletes what the run has stored at the broker.
func (b *broker) remove(ctx context.Context) error { return b.js.DeleteStream(ctx, b.names.stream()) }

func (b *broker) close() {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.embedded != nil {
		b.embedded.Shutdown()
		b.embedded.WaitForShutdown()
	}
}
