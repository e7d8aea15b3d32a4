package shop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// AnswerTime is how long a server has to answer at the start.
const AnswerTime = 5 * time.Second

// OpenNATS connects to a server that has to be there at the beginning; later the connection comes back. Without a URL
// it starts a server with JetStream in this process, which keeps its files in dir. Call closing at the end.
func OpenNATS(url, dir string, options ...nats.Option) (js jetstream.JetStream, closing func(), err error) {
	stop := func() {}
	if url == "" {
		srv, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: filepath.Join(dir, "nats"),
		})
		if err != nil {
			return nil, nil, fmt.Errorf("embedded NATS server: %w", err)
		}
		srv.Start()
		stop = func() {
			srv.Shutdown()
			srv.WaitForShutdown()
		}
		if !srv.ReadyForConnections(10 * time.Second) {
			stop()
			return nil, nil, errors.New("embedded NATS server was not ready within 10 s")
		}
		url = srv.ClientURL()
	}
	options = append(options, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.Timeout(AnswerTime))
	conn, err := nats.Connect(url, options...)
	if err != nil {
		stop()
		return nil, nil, NoServer("nats", Redacted(url), err)
	}
	js, err = jetstream.New(conn)
	return js, func() {
		conn.Close()
		stop()
	}, err
}

// PublishCopy publishes a message past the outbox, as a producer does that retries on its own. Without a Nats-Msg-Id
// the stream takes every copy.
func PublishCopy(ctx context.Context, js jetstream.JetStream, subject, id string, payload []byte) error {
	header := nats.Header{producer.HeaderID: {id}}
	_, err := js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: header, Data: payload})
	return err
}

// Messages returns all that a stream has of a subject, copies included.
func Messages(ctx context.Context, js jetstream.JetStream, stream, subject string) ([]jetstream.Msg, error) {
	cons, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return nil, err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return nil, err
	}
	messages, err := cons.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	all := make([]jetstream.Msg, info.NumPending)
	for i := range all {
		if all[i], err = messages.Next(jetstream.NextMaxWait(AnswerTime)); err != nil {
			return nil, fmt.Errorf("%s gave %d of %d messages: %w", subject, i, len(all), err)
		}
	}
	return all, nil
}

// AtRest reports whether a durable consumer has had messages and all that it is to get is acknowledged, and how many
// deliveries there were. A consumer that a server is just making has none, and says that none are pending.
func AtRest(
	ctx context.Context, js jetstream.JetStream, stream, durable string,
) (rest bool, deliveries int, err error) {
	cons, err := js.Consumer(ctx, stream, durable)
	if err != nil {
		return false, 0, err
	}
	info := cons.CachedInfo()
	deliveries = int(info.Delivered.Consumer)
	return deliveries > 0 && info.NumPending == 0 && info.NumAckPending == 0, deliveries, nil
}

// Settled waits until the outbox is empty, the durable consumers have acknowledged all there is, and still so a moment
// later. Name them in the order in which work flows. When it cannot be told, as servers may be away, something is under
// way.
func Settled(
	ctx context.Context, box outbox.Inspector, js jetstream.JetStream, stream string, durables ...string,
) error {
	quiet := 0
	return Poll(ctx, 100*time.Millisecond, func() (bool, error) {
		quiet++
		for _, durable := range durables {
			if stats, err := box.Stats(ctx); err != nil || stats.Pending > 0 {
				quiet = 0
			}
			if rest, _, err := AtRest(ctx, js, stream, durable); err != nil || !rest {
				quiet = 0
			}
		}
		return quiet == 5, nil
	})
}
