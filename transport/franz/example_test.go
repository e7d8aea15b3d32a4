package franz_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A program has its own brokers, a store that outlives it, such as redisstore, and handles errors.
func broker() (*kfake.Cluster, kgo.Opt) {
	cluster := kfake.MustCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	return cluster, kgo.SeedBrokers(cluster.ListenAddrs()...)
}

func processor() *consumer.Processor {
	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	once, _ := consumer.New(store, consumer.Config{Group: "billing"})
	return once
}

func publish(seed kgo.Opt, messages ...producer.Message) {
	cl, _ := kgo.NewClient(append(franz.PublisherOpts(), seed)...)
	defer cl.Close()
	pub, _ := franz.NewPublisher(cl, franz.PublisherConfig{})
	if err := pub.Publish(context.Background(), messages...); err != nil {
		fmt.Println(err)
	}
}

func ExampleNewWorker() {
	cluster, seed := broker()
	defer cluster.Close()
	twice := producer.Message{ID: "order-17", Topic: "orders", Key: "ada", Payload: []byte("two shoes")}
	last := producer.Message{ID: "order-18", Topic: "orders", Key: "ada", Payload: []byte("a hat")}
	publish(seed, twice, twice, last)

	ctx, stop := context.WithCancel(context.Background())
	charge := func(ctx context.Context, rec *kgo.Record) error {
		fmt.Printf("%s: %s\n", oncemill.FromContext(ctx).Key.ID, rec.Value)
		if string(rec.Value) == "a hat" {
			stop()
		}
		return nil
	}
	w, err := franz.NewWorker(processor(), charge, franz.Config{Handler: "charge", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	cl, err := kgo.NewClient(append(w.Opts(), seed, kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cl.CloseAllowingRebalance()
	fmt.Println(w.Run(ctx, cl))
	// Output:
	// order-17: two shoes
	// order-18: a hat
	// <nil>
}

func ExampleNewSource() {
	cluster, seed := broker()
	defer cluster.Close()
	publish(seed, producer.Message{ID: "order-17", Topic: "orders", Payload: []byte("two shoes")})

	once := processor()
	source, err := franz.NewSource(once, franz.SourceConfig{
		Config: franz.Config{Logger: slog.New(slog.DiscardHandler)},
		Opts:   []kgo.Opt{seed, kgo.ConsumerGroup("billing")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	fmt.Println(source.Run(ctx, "orders", func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
		d.Handler = "charge"
		once.Start(ctx, d, func(context.Context) error {
			fmt.Printf("charged for %s\n", d.Payload)
			stop()
			return nil
		}, done)
	}))
	// Output:
	// charged for two shoes
	// <nil>
}

func ExampleNewPublisher() {
	cluster, seed := broker()
	defer cluster.Close()
	cl, err := kgo.NewClient(append(franz.PublisherOpts(), seed)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cl.Close()
	pub, err := franz.NewPublisher(cl, franz.PublisherConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(pub.Publish(context.Background(), producer.Message{ID: producer.NewID(), Topic: "orders", Key: "ada", Payload: []byte("two shoes")}))
	// Output: <nil>
}
