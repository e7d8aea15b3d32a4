package stocknats_test

import (
	"log/slog"
	"testing"
	"time"

	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/transport/stocknats"
)

// Neither the adapters nor nats.go tell a subscription of it.
func TestJetStream_SaysWhyTheServerDoesNotLetItInAndGoesOn(t *testing.T) {
	t.Parallel()
	withPassword := func(password string) func(*server.Options) {
		return func(o *server.Options) { o.Users = []*server.User{{Username: "app", Password: password}} }
	}
	s := testserver.NATS(t, withPassword("first"))
	nc := s.Connect(nats.UserInfo("app", "first"), nats.IgnoreAuthErrorAbort(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	var log locked
	sub, err := stocknats.JetStream(nc, wmjetstream.SubscriberConfig{
		ResourceInitializer: stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
			return "orders", jetstream.ConsumerConfig{Durable: "billing"}
		}),
	}, stocknats.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	stocknats.LookEvery(sub, 50*time.Millisecond)
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	s.RestartWith(withPassword("second"))
	until(t, "the line and its reason", func() bool {
		return log.has("no connection to the NATS server") && log.has("Authorization Violation")
	})
	s.RestartWith(withPassword("first"))
	until(t, "a message", func() bool { _, err := js.Publish(t.Context(), "orders", nil); return err == nil })
	select {
	case msg, open := <-messages:
		if !open {
			t.Fatal("the subscription has ended")
		}
		msg.Ack()
	case <-time.After(patience):
		t.Error("no message comes")
	}
}

// nats.go closes the connection for good at the second refusal, unless it is told not to.
func TestJetStream_SaysWhyTheConnectionIsClosedForGood(t *testing.T) {
	t.Parallel()
	withPassword := func(password string) func(*server.Options) {
		return func(o *server.Options) { o.Users = []*server.User{{Username: "app", Password: password}} }
	}
	s := testserver.NATS(t, withPassword("first"))
	nc := s.Connect(nats.UserInfo("app", "first"), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	var log locked
	sub, err := stocknats.JetStream(nc, wmjetstream.SubscriberConfig{
		ResourceInitializer: stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
			return "orders", jetstream.ConsumerConfig{Durable: "billing"}
		}),
	}, stocknats.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	s.RestartWith(withPassword("second"))
	select {
	case <-messages:
	case <-time.After(patience):
		t.Fatal("the subscription goes on")
	}
	if !log.has("Authorization Violation") {
		t.Errorf("log:\n%s", log.b.String())
	}
}
