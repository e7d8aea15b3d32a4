//go:build !race

package stock_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer/sourcetest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
)

// Not under the race detector: when watermill-nats is closed it may send to a channel that it has closed.
func TestNATS_Conforms(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, func(t *testing.T) sourcetest.Subject { return natsSubject(t, natstest.Start(t)) })
}

const natsAckWait = 2 * time.Second

func natsSubject(t *testing.T, server *natstest.Server) sourcetest.Subject {
	t.Helper()
	js := server.JetStream()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	cons, err := js.CreatePushConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{
		Durable: "billing", DeliverSubject: "deliver.billing", DeliverGroup: "billing",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: natsAckWait, MaxDeliver: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := newStockGroup(t, "orders", func() (message.Subscriber, error) {
		return wnats.NewSubscriber(wnats.SubscriberConfig{
			URL: server.URL(), QueueGroupPrefix: "billing", AckWaitTimeout: time.Minute,
			NakDelay: wnats.NewStaticDelay(20 * time.Millisecond),
			JetStream: wnats.JetStreamConfig{
				SubscribeOptions: []nats.SubOpt{nats.ManualAck(), nats.Bind("ORDERS", "billing")}, DurablePrefix: "billing",
			},
		}, watermill.NopLogger{})
	})
	g.closeFirst = true // when its context ends, it may send to a channel that it has closed
	s := g.subject(func(messages ...sourcetest.Message) {
		for _, m := range messages {
			msg := nats.NewMsg("orders")
			msg.Header.Set(producer.HeaderID, m.ID)
			msg.Data = m.Payload
			if _, err := js.PublishMsg(context.Background(), msg); err != nil {
				t.Error(err)
			}
		}
	}, func() int {
		info, err := cons.Info(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return int(info.NumPending) + info.NumAckPending
	})
	s.AckWait = natsAckWait
	s.Lacks[sourcetest.Order] = "a nacked message comes behind what follows it"
	return s
}
