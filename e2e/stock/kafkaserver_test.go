package stock_test

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer/sourcetest"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/producer"
)

func TestKafka_Conforms(t *testing.T) {
	t.Parallel()
	server := kafkatest.Shared(t)
	// Sarama's first client starts a goroutine that is the process's.
	warm, err := sarama.NewClient([]string{server.Addr}, subscriberConfig())
	if err != nil {
		t.Fatal(err)
	}
	warm.Close()
	sourcetest.Run(t, func(t *testing.T) sourcetest.Subject { return kafkaSubject(t, server) })
}

func kafkaSubject(t *testing.T, server *kafkatest.Server) sourcetest.Subject {
	t.Helper()
	topic, config := stockTopic(), subscriberConfig()
	server.CreateTopic(topic, 2)
	config.Consumer.Group.Session.Timeout = 3 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	g := newStockGroup(t, topic, func() (message.Subscriber, error) {
		return kafka.NewSubscriber(kafka.SubscriberConfig{
			Brokers: []string{server.Addr}, ConsumerGroup: topic, OverwriteSaramaConfig: config,
			NackResendSleep: 10 * time.Millisecond,
		}, watermill.NopLogger{})
	})
	client := server.Client(kgo.ProducerLinger(0))
	admin := kadm.NewClient(client)
	return g.subject(func(messages ...sourcetest.Message) {
		for _, m := range messages {
			record := &kgo.Record{
				Topic: topic, Value: m.Payload, Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(m.ID)}},
			}
			if m.Key != "" {
				record.Key = []byte(m.Key)
			}
			if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
				t.Error(err)
			}
		}
	}, func() (n int) {
		ends, err := admin.ListEndOffsets(context.Background(), topic)
		if err != nil {
			t.Error(err)
		}
		ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
		if committed, err := admin.FetchOffsets(context.Background(), topic); err == nil {
			committed.Each(func(o kadm.OffsetResponse) { n -= int(max(o.At, 0)) })
		}
		return n
	})
}
