package stock_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/oncemill/oncemill/consumer/sourcetest"
	"github.com/oncemill/oncemill/internal/testserver/rabbittest"
)

// A textMarshaler leaves out headers that are no text, such as x-delivery-count, which quorum queues add to what they
// deliver again. With them, the adapter's own marshaler refuses a message each time.
type textMarshaler struct{ amqp.DefaultMarshaler }

// Unmarshal makes a message of a delivery.
func (m textMarshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	text := amqp091.Table{}
	for name, value := range d.Headers {
		if s, ok := value.(string); ok {
			text[name] = s
		}
	}
	d.Headers = text
	return m.DefaultMarshaler.Unmarshal(d)
}

// rabbitConfig is what docs/brokers.md asks for.
func rabbitConfig(url, kind string) amqp.Config {
	c := amqp.NewDurableQueueConfig(url)
	c.Queue.Arguments = amqp091.Table{"x-queue-type": kind}
	c.Publish.ConfirmDelivery = true
	c.Marshaler = textMarshaler{}
	c.Connection.Reconnect = amqp.DefaultReconnectConfig()
	c.Connection.Reconnect.BackoffInitialInterval = 50 * time.Millisecond
	c.Connection.Reconnect.BackoffMaxInterval = time.Second
	return c
}

func TestAMQP_Conforms(t *testing.T) {
	t.Parallel()
	server := rabbittest.Shared(t)
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			sourcetest.Run(t, func(t *testing.T) sourcetest.Subject { return rabbitSubject(t, server, kind) })
		})
	}
}

func rabbitSubject(t *testing.T, server *rabbittest.Server, kind string) sourcetest.Subject {
	t.Helper()
	topic, config := stockTopic(), rabbitConfig(server.URL(), kind)
	g := newStockGroup(t, topic, func() (message.Subscriber, error) {
		return amqp.NewSubscriber(config, watermill.NopLogger{})
	})
	admin, err := amqp091.Dial(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	ch, err := admin.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(topic, true, false, false, false, config.Queue.Arguments); err != nil {
		t.Fatal(err)
	}
	pub, err := amqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pub.Close() })
	s := g.subject(func(messages ...sourcetest.Message) {
		for _, m := range messages {
			if err := pub.Publish(topic, stockMessage(m)); err != nil {
				t.Error(err)
			}
		}
	}, func() int {
		q, err := ch.QueueDeclarePassive(topic, true, false, false, false, nil)
		if err != nil {
			t.Error(err)
		}
		return q.Messages
	})
	s.AckWait = rabbittest.SharedConsumerTimeout
	s.Lacks[sourcetest.End] = "watermill-amqp now and then connects again while it is closed"
	if kind == "quorum" {
		s.Lacks[sourcetest.Order] = "a nacked message comes behind what follows it"
	}
	return s
}
