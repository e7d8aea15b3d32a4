package stocknats_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/stocknats"
)

func ExampleJetStream() {
	exampleService(func(nc *nats.Conn) (message.Subscriber, error) {
		return stocknats.JetStream(nc, wmjetstream.SubscriberConfig{
			ResourceInitializer: stocknats.Durable(func(string) (string, jetstream.ConsumerConfig) {
				return "orders", jetstream.ConsumerConfig{Durable: "billing", AckWait: 30 * time.Second}
			}),
		}, stocknats.Config{})
	})
	// Output: charged o1
}

func ExampleNATS() {
	exampleService(func(nc *nats.Conn) (message.Subscriber, error) {
		return stocknats.NATS(nc, wmnats.SubscriberSubscriptionConfig{
			QueueGroupPrefix: "billing",
			JetStream:        wmnats.JetStreamConfig{DurablePrefix: "billing"},
		}, stocknats.Config{})
	})
	// Output: charged o1
}

func ExampleDurable() {
	// One consumer for each topic, in the stream that bears the service's name.
	initializer := stocknats.Durable(func(topic string) (string, jetstream.ConsumerConfig) {
		return "shop", jetstream.ConsumerConfig{
			Durable: "billing-" + topic, FilterSubject: "shop." + topic, AckWait: time.Minute, MaxDeliver: -1,
		}
	})
	_ = wmjetstream.SubscriberConfig{ResourceInitializer: initializer}
}

// exampleService publishes a message twice to a guarded Router with the subscriber.
func exampleService(subscriber func(*nats.Conn) (message.Subscriber, error)) {
	slog.SetLogLoggerLevel(slog.LevelError)
	nc, stop, err := exampleServer()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	sub, err := subscriber(nc)
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // in production: redisstore.New
	if err != nil {
		fmt.Println(err)
		return
	}
	once, err := consumer.New(store, consumer.Config{Group: "billing", Hold: consumer.NoHold, Policy: oncemill.HighValue()})
	if err != nil {
		fmt.Println(err)
		return
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 30 * time.Second}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	handled := make(chan struct{}, 2)
	router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			defer func() { handled <- struct{}{} }()
			return next(msg)
		}
	}, once.Middleware)
	router.AddConsumerHandler("charge", "orders", sub, func(msg *message.Message) error {
		fmt.Println("charged", string(msg.Payload))
		return nil
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := router.Run(context.Background()); err != nil {
			fmt.Println(err)
		}
	}()
	<-handled
	<-handled
	router.Close()
	<-ended
}

// exampleServer runs a server in this process, with a stream that holds a message and its copy.
func exampleServer() (*nats.Conn, func(), error) {
	dir, err := os.MkdirTemp("", "stocknats")
	if err != nil {
		return nil, nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		return nil, nil, err
	}
	s.Start()
	stop := func() {
		s.Shutdown()
		s.WaitForShutdown()
		os.RemoveAll(dir)
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		return nil, stop, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, stop, err
	}
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
		return nil, stop, err
	}
	for range 2 {
		msg := &nats.Msg{Subject: "orders", Data: []byte("o1"), Header: nats.Header{"oncemill-id": {"o1"}}}
		if _, err := js.PublishMsg(context.Background(), msg); err != nil {
			return nil, stop, err
		}
	}
	return nc, stop, nil
}
