package franz_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A panickyPublisher panics at its first call.
type panickyPublisher struct {
	producer.Publisher
	calls atomic.Int32
}

func (p *panickyPublisher) Publish(ctx context.Context, messages ...producer.Message) error {
	if p.calls.Add(1) == 1 {
		panic("of the publisher")
	}
	return p.Publisher.Publish(ctx, messages...)
}

func refused(_ context.Context, id string, _ int) error {
	if id == orderID(0) {
		return oncemill.Permanent(errors.New("no"))
	}
	return nil
}

// The guard recovers from panics of handlers only. Any other would end the process, and at each start again.
func TestWorker_PanicOfTheDeadLetterPublisherIsARetry(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "dead"))
	b.produce(0, 2, 1, 0)
	letters := &panickyPublisher{Publisher: b.publisher()}
	once := b.processor(consumer.Config{Policy: oncemill.Policy{Lease: 500 * time.Millisecond}, DeadLetters: letters, DeadLetterTopic: "dead"})
	m := b.start(once, b.handler(byRecord, refused), franz.Config{})
	until(t, "both records", func() bool { return b.committed("orders")[0] == 2 })
	m.leave()
	b.only("dead")
	wantLog(t, b, "level=ERROR", "panic", "of the publisher", "id="+orderID(0), "offset=0", "stack=")
}

func TestWorker_PanicOfTheRetryPublisherIsARetryInPlace(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	b.produce(0, 2, 1, 0)
	config.RetryPublisher = &panickyPublisher{Publisher: config.RetryPublisher}
	m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(_ context.Context, id string, run int) error {
		if id == orderID(0) && run == 1 {
			return errors.New("not yet")
		}
		return nil
	}), config, topics)
	until(t, "both records", func() bool { return b.committed("orders")[0] == 2 })
	m.leave()
	wantLog(t, b, "level=WARN", "waits in its place", "RetryPublisher panicked", "of the publisher", "offset=0")
}

func TestShareWorker_PanicOfTheDeadLetterPublisherIsARetry(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 2, 1)
	letters := &panickyPublisher{Publisher: b.publisher()}
	once := b.processor(consumer.Config{Policy: oncemill.Policy{Lease: 500 * time.Millisecond}, DeadLetters: letters, DeadLetterTopic: b.dead})
	m := b.begin(once, b.handler(byRecord, refused), franz.ShareConfig{})
	b.wantSettled(b.topic)
	m.leave()
	b.only(b.dead)
	wantLog(t, b.bench, "level=ERROR", "panic", "of the publisher", "id="+orderID(0), "offset=0", "stack=")
}
