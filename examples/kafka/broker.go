package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/billing"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// names are what a run calls its things.
type names struct{ run string }

func (n names) orders() string { return "shop." + n.run + ".orders" }
func (n names) dead() string   { return "shop." + n.run + ".dead" }
func (n names) group() string  { return "shop." + n.run + ".billing" }

// partitions is how many a topic has.
const partitions = 4

// A broker is a connection to Kafka, and its stand-in if that is in this process.
type broker struct {
	names
	embedded *kfake.Cluster
	brokers  []string
	client   *kgo.Client
	admin    *kadm.Client
	pub      producer.Publisher
}

func open(ctx context.Context, o billing.Options, _ string) (_ billing.Broker, err error) {
	b := &broker{names: names{o.Run}, brokers: strings.Split(o.Address, ",")}
	if o.Embedded {
		if b.embedded, err = kfake.NewCluster(kfake.NumBrokers(1)); err != nil {
			return nil, fmt.Errorf("embedded Kafka: %w", err)
		}
		b.brokers = b.embedded.ListenAddrs()
	}
	if b.client, b.pub, err = newPublisher(b.brokers...); err == nil {
		b.admin = kadm.NewClient(b.client)
		err = b.makeTopics(ctx)
	}
	if err != nil {
		b.disconnect()
		return nil, shop.NoServer("brokers", o.Address, err)
	}
	return b, nil
}

func (b *broker) makeTopics(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	// Records are not kept longer than outcomes are remembered: when offsets are set back, older ones would run again.
	day := strconv.FormatInt((24 * time.Hour).Milliseconds(), 10)
	_, err1 := b.admin.CreateTopic(ctx, partitions, 1, map[string]*string{"retention.ms": &day}, b.orders())
	_, err2 := b.admin.CreateTopic(ctx, partitions, 1, nil, b.dead())
	return errors.Join(err1, err2)
}

// Place implements billing.Broker.
func (b *broker) Place(ctx context.Context, o shop.Order) error {
	return place(ctx, b.pub, b.orders(), o)
}

// Consume implements billing.Broker.
func (b *broker) Consume(ctx context.Context, store dedupstore.Store, bank *billing.Bank) error {
	return consume(ctx, b.names, store, b.pub, bank, kgo.SeedBrokers(b.brokers...))
}

// AtRest implements billing.Broker.
func (b *broker) AtRest(ctx context.Context) (bool, error) {
	ends, err := b.admin.ListEndOffsets(ctx, b.orders())
	if err != nil {
		return false, err
	}
	committed, err := b.admin.FetchOffsets(ctx, b.group())
	if err != nil {
		return false, err
	}
	rest := ends.Error() == nil
	ends.Each(func(end kadm.ListedOffset) {
		at, ok := committed.Lookup(end.Topic, end.Partition)
		rest = rest && (end.Offset == 0 || ok && at.At == end.Offset)
	})
	return rest, nil
}

// DeadLetters implements billing.Broker.
func (b *broker) DeadLetters(ctx context.Context) ([]shop.Order, error) {
	ends, err := b.admin.ListEndOffsets(ctx, b.dead())
	if err := errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	var deadLetters int64
	ends.Each(func(end kadm.ListedOffset) { deadLetters += end.Offset })
	b.client.AddConsumeTopics(b.dead()) // from the start, as no option says otherwise
	var orders []shop.Order
	for int64(len(orders)) < deadLetters {
		fetched := b.client.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return nil, err
		}
		for _, record := range fetched.Records() {
			o, err := shop.ParseOrder(record.Value)
			if err != nil {
				return nil, err
			}
			orders = append(orders, o)
		}
	}
	return orders, nil
}

// Close implements billing.Broker.
func (b *broker) Close(ctx context.Context) error {
	defer b.disconnect()
	topics, err := b.admin.DeleteTopics(ctx, b.orders(), b.dead())
	group, err2 := b.admin.DeleteGroup(ctx, b.group())
	return errors.Join(err, topics.Error(), err2, group.Err)
}

func (b *broker) disconnect() {
	if b.client != nil {
		b.client.Close()
	}
	if b.embedded != nil {
		b.embedded.Close()
	}
}
