package stocknats_test

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/transport/stocknats"
)

// At a leaf node that has a JetStream of its own, the hub's is another domain.
func TestStock_ConsumesFromAnotherDomain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		port, err := testserver.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		hub := testserver.NATS(t, func(o *server.Options) {
			o.JetStreamDomain = "hub"
			o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port
		}).JetStream()
		if _, err := hub.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
			t.Fatal(err)
		}
		nc := testserver.NATS(t, func(o *server.Options) {
			o.JetStreamDomain = "leaf"
			o.LeafNode.ReconnectInterval = 50 * time.Millisecond
			o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}}}
		}).Connect()
		far, err := jetstream.NewWithDomain(nc, "hub")
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the hub", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := far.Stream(ctx, "orders")
			return err == nil
		})
		var sub message.Subscriber
		if adapter == "jetstream" {
			plan := stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
				return "orders", jetstream.ConsumerConfig{Durable: "billing"}
			})
			sub, err = stocknats.JetStream(nc, wmjetstream.SubscriberConfig{
				ResourceInitializer: func(ctx context.Context, js jetstream.JetStream, topic string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
					js, err := jetstream.NewWithDomain(js.Conn(), "hub")
					if err != nil {
						return nil, nil, err
					}
					return plan(ctx, js, topic)
				},
			}, stocknats.Config{Logger: quiet})
		} else {
			sub, err = stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{
				QueueGroupPrefix: "billing",
				JetStream:        wmnats.JetStreamConfig{DurablePrefix: "billing", ConnectOptions: []nats.JSOpt{nats.Domain("hub")}},
			}, stocknats.Config{Logger: quiet})
		}
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Publish(t.Context(), "orders", []byte("o")); err != nil {
			t.Fatal(err)
		}
		for _, answer := range []func(*message.Message) bool{(*message.Message).Nack, (*message.Message).Ack} {
			select {
			case msg := <-messages:
				answer(msg)
			case <-time.After(patience):
				t.Fatalf("no message within %v", patience)
			}
		}
	})
}
