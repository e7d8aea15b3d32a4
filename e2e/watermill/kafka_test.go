package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

const group = "billing"

// A bench is a fake cluster and a store.
type bench struct {
	t       testing.TB
	cluster *kfake.Cluster
	store   dedupstore.Store
	admin   *kadm.Client
}

// newBench starts a cluster with topic "orders".
func newBench(t testing.TB, partitions int32, opts ...kfake.Opt) *bench {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: store}
	opts = append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"), kfake.GroupMinSessionTimeout(time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"})}, opts...)
	if b.cluster, err = kfake.NewCluster(opts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.cluster.Close)
	b.admin = kadm.NewClient(b.newClient())
	return b
}

func (b *bench) newClient(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ProducerLinger(0), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(cl.CloseAllowingRebalance)
	return cl
}

// produce writes n stamped records to orders: record i has ID o<i>, and lies in partition i mod partitions.
func (b *bench) produce(n, partitions int) {
	b.t.Helper()
	cl := b.newClient(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var records []*kgo.Record
	for i := range n {
		id := []byte(orderID(i))
		records = append(records, &kgo.Record{
			Topic: "orders", Partition: int32(i % partitions), Value: id, Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: id}},
		})
	}
	if err := cl.ProduceSync(b.t.Context(), records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

func orderID(i int) string { return fmt.Sprintf("o%d", i) }

// committed returns the group's offsets of a topic by partition.
func (b *bench) committed(topic string) map[int32]int64 {
	b.t.Helper()
	found, err := b.admin.FetchOffsets(b.t.Context(), group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		b.t.Fatal(err)
	}
	offsets := map[int32]int64{}
	for p, o := range found[topic] {
		offsets[p] = o.At
	}
	return offsets
}

// processor returns a processor over the bench's store.
func (b *bench) processor() *consumer.Processor {
	b.t.Helper()
	once, err := consumer.New(b.store, consumer.Config{Group: group, Policy: oncemill.Policy{
		Logger: slog.New(slog.DiscardHandler), Backoff: oncemill.Backoff{Min: 20 * time.Millisecond, Max: 50 * time.Millisecond},
	}})
	if err != nil {
		b.t.Fatal(err)
	}
	return once
}

func (b *bench) source(once *consumer.Processor, config franz.Config, opts ...kgo.Opt) *franz.Source {
	b.t.Helper()
	config.CommitEvery, config.Logger = 20*time.Millisecond, slog.New(slog.DiscardHandler)
	opts = append([]kgo.Opt{
		kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumerGroup(group), kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.HeartbeatInterval(50 * time.Millisecond), kgo.FetchMaxWait(100 * time.Millisecond),
	}, opts...)
	s, err := franz.NewSource(once, franz.SourceConfig{Config: config, Opts: opts})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) publisher() *franz.Publisher {
	b.t.Helper()
	pub, err := franz.NewPublisher(b.newClient(franz.PublisherOpts()...), franz.PublisherConfig{})
	if err != nil {
		b.t.Fatal(err)
	}
	return pub
}

// records returns what is in a topic.
func (b *bench) records(topic string) []*kgo.Record {
	b.t.Helper()
	ends, err := b.admin.ListEndOffsets(b.t.Context(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	missing := 0
	ends.Each(func(o kadm.ListedOffset) { missing += int(o.Offset) })
	cl := b.newClient(kgo.ConsumeTopics(topic))
	defer cl.Close()
	var found []*kgo.Record
	for len(found) < missing {
		ctx, cancel := context.WithTimeout(b.t.Context(), waitLimit)
		fetches := cl.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			b.t.Fatal(err)
		}
		found = append(found, fetches.Records()...)
	}
	return found
}

func TestKafka_SourceUnderARouter(t *testing.T) {
	t.Parallel()
	const n = 100
	b := newBench(t, 2, kfake.SeedTopics(1, "receipts"))
	b.produce(n, 2)
	once := b.processor()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	runs := map[string]int{}
	source, out := b.source(once, franz.Config{Order: franz.PerKey}), oncewatermill.NewPublisher(b.publisher())
	charge := func(msg *message.Message) ([]*message.Message, error) {
		mu.Lock()
		defer mu.Unlock()
		id := string(msg.Payload)
		if runs[id]++; runs[id] == 1 && strings.HasSuffix(id, "3") {
			return nil, errors.New("the bank is closed")
		}
		return []*message.Message{message.NewMessage("", msg.Payload)}, nil
	}
	oncewatermill.AddHandler(router, once, "charge", "orders", source, "receipts", out, charge)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	until(t, "the commits", func() bool { got := b.committed("orders"); return got[0] == n/2 && got[1] == n/2 })
	if err := router.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := once.Close(t.Context()); err != nil {
		t.Error(err)
	}
	receipts := map[string]int{}
	for _, rec := range b.records("receipts") {
		receipts[string(rec.Value)]++
	}
	for i := range n {
		want := 1
		if i%10 == 3 {
			want = 2
		}
		if id := orderID(i); runs[id] != want || receipts[id] != 1 {
			t.Errorf("%s: %d runs and %d receipts, want %d and one", id, runs[id], receipts[id], want)
		}
	}
}

// creating creates topics of one partition when they are first used, as a broker may be configured to do.
type creating struct {
	message.Publisher
	cluster *kfake.Cluster
}

func (c creating) create(topic string) error {
	if err := c.cluster.CreateTopic(topic, 1, nil); err != nil && c.cluster.TopicInfo(topic) == nil {
		return err
	}
	return nil
}

func (c creating) Publish(topic string, messages ...*message.Message) error {
	if err := c.create(topic); err != nil {
		return err
	}
	return c.Publisher.Publish(topic, messages...)
}

// subscribing creates topics before it subscribes to them.
type subscribing struct {
	message.Subscriber
	creating
}

func (s subscribing) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := s.create(topic); err != nil {
		return nil, err
	}
	return s.Subscriber.Subscribe(ctx, topic)
}

func (s subscribing) Close() error { return s.Subscriber.Close() }

// kafkaPubSubs returns the constructor of what Watermill's suite tests.
func kafkaPubSubs(b *bench) tests.ConsumerGroupPubSubConstructor {
	return func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
		t.Helper()
		source := b.source(b.processor(), franz.Config{Grace: time.Second}, kgo.ConsumerGroup(name)) // the suite leaves messages without an answer
		c := creating{oncewatermill.NewPublisher(b.publisher()), b.cluster}
		sub := subscribing{subscriber(t, source), c}
		t.Cleanup(func() { _ = sub.Close() }) // the suite forgets some
		return c, sub
	}
}

func TestKafka_SourcePassesWatermillsSuite(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("set ONCEMILL_PROOF=1: it takes 40 s")
	}
	open := kafkaPubSubs(newBench(t, 1))
	one := func(t *testing.T) (message.Publisher, message.Subscriber) { return open(t, "test") }
	tests.TestPubSub(t, tests.Features{ConsumerGroups: true, Persistent: true, GuaranteedOrder: true}, one, open)
}

func TestKafka_SourcePassesWatermillsTestsOfResendsAndOldMessages(t *testing.T) {
	t.Parallel()
	open := kafkaPubSubs(newBench(t, 1))
	each := func(t *testing.T) (message.Publisher, message.Subscriber) { return open(t, watermill.NewShortUUID()) }
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"resends":      tests.TestResendOnError,
		"no ack":       tests.TestNoAck,
		"old messages": tests.TestNewSubscriberReceivesOldMessages,
		"context":      tests.TestMessageCtx,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: tests.Features{
				Persistent: true, GuaranteedOrder: true, NewSubscriberReceivesOldMessages: true, ForceShort: true,
			}}, each)
		})
	}
}
