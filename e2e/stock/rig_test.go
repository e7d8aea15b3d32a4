package stock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil { // they wait more than they work
		panic(err)
	}
	goleak.VerifyTestMain(m,
		// sarama's metrics (rcrowley/go-metrics) have one goroutine for the whole process.
		goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"),
		// While watermill-amqp closes its connection, the end of that tells a channel that nobody reads, or makes the adapter
		// connect again.
		goleak.IgnoreAnyFunction("github.com/rabbitmq/amqp091-go.(*Connection).shutdown.func1"),
		goleak.IgnoreAnyFunction("github.com/rabbitmq/amqp091-go.(*Connection).reader"),
		goleak.IgnoreAnyFunction("github.com/rabbitmq/amqp091-go.(*Connection).heartbeater"),
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp.(*ConnectionWrapper).reconnect"))
}

// patience bounds every wait for something that must come.
const waitLimit = 2 * time.Minute

// until polls for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}

// subscriberConfig is what docs/brokers.md asks for.
func subscriberConfig() *sarama.Config {
	c := kafka.DefaultSaramaSubscriberConfig()
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	return c
}

// publisherConfig is what docs/brokers.md asks for.
func publisherConfig() *sarama.Config {
	c := kafka.DefaultSaramaSyncPublisherConfig()
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Producer.Idempotent = true
	c.Net.MaxOpenRequests = 1 // sarama asks for it where Idempotent is set
	return c
}

// A rig is a cluster with the topic "orders", and what its consumers do.
type rig struct {
	t       *testing.T
	cluster *kfake.Cluster
	client  *kgo.Client
	admin   *kadm.Client
	store   dedupstore.Store
	handle  func(msg *message.Message, run int) error

	// what a service is made with
	subscriber *sarama.Config
	consumer   consumer.Config

	mu        sync.Mutex
	delivered []delivered
	runs      map[string]int
}

type delivered struct {
	payload string
	at      time.Time
}

func newRig(t *testing.T, partitions int32) *rig {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{
		t: t, cluster: cluster, client: client, admin: kadm.NewClient(client), store: memory, subscriber: subscriberConfig(),
		runs: map[string]int{},
	}
}

// publish adds a message to a partition. The payload is its ID, too.
func (r *rig) publish(partition int32, payloads ...string) {
	r.t.Helper()
	for _, p := range payloads {
		record := &kgo.Record{
			Topic: "orders", Partition: partition, Value: []byte(p),
			Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(p)}},
		}
		if err := r.client.ProduceSync(r.t.Context(), record).FirstErr(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// committed returns the sum of the group's offsets: how many messages are done with, if none are left out.
func (r *rig) committed() (n int64) {
	r.t.Helper()
	offsets, err := r.admin.FetchOffsets(context.Background(), "billing")
	if errors.Is(err, kerr.GroupIDNotFound) {
		return 0
	}
	if err != nil {
		r.t.Fatal(err)
	}
	offsets.Each(func(o kadm.OffsetResponse) { n += o.At })
	return n
}

func (r *rig) awaitCommitted(n int) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("%d messages to be committed", n), func() bool { return r.committed() == int64(n) })
}

// group is the state of the consumer group.
func (r *rig) group() kadm.DescribedGroup {
	r.t.Helper()
	groups, err := r.admin.DescribeGroups(context.Background(), "billing")
	if err != nil {
		r.t.Fatal(err)
	}
	return groups["billing"]
}

// A service is a process: a Router with a guarded handler.
type service struct {
	*message.Router
	stop func() // by the end of the context, and waits
}

// serve starts a service, and stops it at the end of the test.
func (r *rig) serve() *service {
	r.t.Helper()
	config := r.consumer
	config.Group = "billing"
	config.Policy.Logger = slog.New(slog.DiscardHandler)
	once, err := consumer.New(r.store, config)
	if err != nil {
		r.t.Fatal(err)
	}
	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: r.cluster.ListenAddrs(), ConsumerGroup: "billing", OverwriteSaramaConfig: r.subscriber, NackResendSleep: 10 * time.Millisecond,
	}, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	router.AddMiddleware(r.count, oncewatermill.Middleware(once))
	router.AddConsumerHandler("charge", "orders", sub, r.run)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := router.Run(ctx); err != nil {
			r.t.Errorf("Router.Run: %v", err)
		}
	}()
	<-router.Running()
	s := &service{router, func() {
		cancel()
		<-ended
		sub.Close()
	}}
	r.t.Cleanup(s.stop)
	return s
}

// count notes the deliveries that reach the Router.
func (r *rig) count(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		r.mu.Lock()
		r.delivered = append(r.delivered, delivered{string(msg.Payload), time.Now()})
		r.mu.Unlock()
		return next(msg)
	}
}

func (r *rig) run(msg *message.Message) error {
	r.mu.Lock()
	r.runs[string(msg.Payload)]++
	n := r.runs[string(msg.Payload)]
	r.mu.Unlock()
	if r.handle == nil {
		return nil
	}
	return r.handle(msg, n)
}

func (r *rig) deliveries() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.delivered)
}

// times returns when a payload was delivered.
func (r *rig) times(payload string) (times []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.delivered {
		if d.payload == payload {
			times = append(times, d.at)
		}
	}
	return times
}

func (r *rig) ran(payload string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[payload]
}

func (r *rig) wantRunsOnce(payloads []string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range payloads {
		if r.runs[p] != 1 {
			r.t.Errorf("%s ran %d times, want once", p, r.runs[p])
		}
	}
}

func within(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(waitLimit):
		t.Fatalf("waited %v for %s", waitLimit, what)
	}
}
