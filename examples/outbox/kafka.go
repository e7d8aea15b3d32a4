package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// partitions is how many the topic has.
const partitions = 4

// A kafkaBroker is a connection to Kafka, and its stand-in if that is in this process.
type kafkaBroker struct {
	topic     string
	temporary bool
	embedded  *kfake.Cluster
	brokers   []string
	client    *kgo.Client
	admin     *kadm.Client
	pub       producer.Publisher
}

func openKafka(ctx context.Context, o options, topic string) (broker, error) {
	b := &kafkaBroker{topic: topic, temporary: o.temporary() && !o.embedded, brokers: strings.Split(o.brokers, ",")}
	if err := b.open(ctx, o); err != nil {
		b.disconnect()
		return nil, err
	}
	return b, nil
}

func (b *kafkaBroker) open(ctx context.Context, o options) error {
	var err error
	if o.embedded {
		if b.embedded, err = kfake.NewCluster(kfake.NumBrokers(1)); err != nil {
			return fmt.Errorf("embedded Kafka: %w", err)
		}
		b.brokers = b.embedded.ListenAddrs()
	}
	if b.client, err = kgo.NewClient(append(franz.PublisherOpts(), kgo.SeedBrokers(b.brokers...))...); err != nil {
		return err
	}
	b.admin = kadm.NewClient(b.client)
	if err := b.makeTopic(ctx); err != nil {
		return noServer("brokers", o.brokers, err)
	}
	b.pub, err = franz.NewPublisher(b.client, franz.PublisherConfig{})
	return err
}

func (b *kafkaBroker) makeTopic(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shop.AnswerTime)
	defer cancel()
	day := strconv.FormatInt((24 * time.Hour).Milliseconds(), 10)
	_, err := b.admin.CreateTopic(ctx, partitions, 1, map[string]*string{"retention.ms": &day}, b.topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

// publisher implements broker.
func (b *kafkaBroker) publisher() producer.Publisher { return b.pub }

// events implements broker.
func (b *kafkaBroker) events(ctx context.Context) ([]received, error) {
	ends, err := b.admin.ListEndOffsets(ctx, b.topic)
	if err := errors.Join(err, ends.Error()); err != nil {
		return nil, err
	}
	var total int64
	ends.Each(func(end kadm.ListedOffset) { total += end.Offset })
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.brokers...), kgo.ConsumeTopics(b.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var all []received
	for int64(len(all)) < total {
		fetched := cl.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			return nil, fmt.Errorf("the topic gave %d of %d events: %w", len(all), total, err)
		}
		for _, record := range fetched.Records() {
			e, err := receive(header(record, producer.HeaderID), record.Value)
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
	}
	return all, nil
}

func header(record *kgo.Record, name string) string {
	for _, h := range record.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// close implements broker.
func (b *kafkaBroker) close(ctx context.Context) error {
	defer b.disconnect()
	if !b.temporary {
		return nil
	}
	topics, err := b.admin.DeleteTopics(ctx, b.topic)
	return errors.Join(err, topics.Error())
}

func (b *kafkaBroker) disconnect() {
	if b.client != nil {
		b.client.Close()
	}
	if b.embedded != nil {
		b.embedded.Close()
	}
}
