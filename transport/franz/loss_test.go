package franz_test

import (
	"context"
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A dead letter that is refused for how its message spells a header would hold its partition up for ever.
func TestWorker_SpellingsOfTheKeyDoNotKeepADeadLetterBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "dead"))
	keyed, keyless := order(0), order(1)
	keyed.Key = []byte("k")
	keyed.Headers = append(keyed.Headers, kgo.RecordHeader{Key: "Oncemill-Key", Value: []byte("other")})
	for _, name := range []string{"Oncemill-Key", "ONCEMILL-KEY"} {
		keyless.Headers = append(keyless.Headers, kgo.RecordHeader{Key: name, Value: []byte(name)})
	}
	if err := b.client.ProduceSync(t.Context(), keyed, keyless, order(2)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	once := b.processor(consumer.Config{DeadLetters: b.publisher(), DeadLetterTopic: "dead"})
	m := b.start(once, b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(2) {
			return nil
		}
		return oncemill.Permanent(errors.New("declined"))
	}), franz.Config{})
	until(t, "what is behind them", func() bool { return b.committed("orders")[0] == 3 })
	m.leave()
	letters := b.records("dead")
	if len(letters) != 2 || string(letters[0].Key) != "k" {
		t.Errorf("dead letters %v, want two, and of the first the key of its record", letters)
	}
}

// What others put into a retry topic fails and is tried again like any other record.
func TestWorker_RecordThatOthersPutIntoARetryTopicIsRetried(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	record := order(0)
	record.Topic = "soon"
	if err := b.client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, _ string, run int) error {
		if run == 1 {
			return errors.New("not yet")
		}
		return nil
	}), config, topics)
	until(t, "the second attempt", func() bool { return b.finished() == 1 })
	m.leave()
}

// A topic that was added to a client that runs already has its retry topics, too.
func TestWorker_RecordsOfATopicThatWasAddedAreRetried(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	if err := b.cluster.CreateTopic("refunds", 1, nil); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, _ string, run int) error {
		if run == 1 {
			return errors.New("not yet")
		}
		return nil
	}), config, topics)
	b.produce(0, 1, 1, 0)
	until(t, "a record", func() bool { return b.finished() == 1 })
	m.cl.AddConsumeTopics("refunds")
	record := order(1)
	record.Topic = "refunds"
	if err := b.client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	until(t, "the second attempt", func() bool { return b.finished() == 2 })
	m.leave()
}
