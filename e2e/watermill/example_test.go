package watermill_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A program has its own brokers, a store that outlives it, such as redisstore, and handles errors. With NATS only the
// source is another one: natsjs.NewSource.
func Example() {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	defer cluster.Close()
	seed := kgo.SeedBrokers(cluster.ListenAddrs()...)
	cl, _ := kgo.NewClient(append(franz.PublisherOpts(), seed)...)
	defer cl.Close()
	pub, _ := franz.NewPublisher(cl, franz.PublisherConfig{})
	order := producer.Message{ID: "order-17", Topic: "orders", Payload: []byte("two shoes")}
	if err := pub.Publish(context.Background(), order, order); err != nil {
		fmt.Println(err)
		return
	}

	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	once, _ := consumer.New(store, consumer.Config{Group: "billing"})
	source, err := franz.NewSource(once, franz.SourceConfig{
		Config: franz.Config{Logger: slog.New(slog.DiscardHandler)},
		Opts:   []kgo.Opt{seed, kgo.ConsumerGroup("billing")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	router, _ := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	ctx, stop := context.WithCancel(context.Background())
	oncewatermill.AddConsumerHandler(router, once, "charge", "orders", source, func(msg *message.Message) error {
		fmt.Printf("%s: %s\n", msg.UUID, msg.Payload)
		stop()
		return nil
	})
	fmt.Println(router.Run(ctx))
	// Output:
	// order-17: two shoes
	// <nil>
}
