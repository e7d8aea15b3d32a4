package franz_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

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
	deadLetters := &panickyPublisher{Publisher: b.publisher()}
	once := b.processor(consumer.Config{Policy: oncemill.Policy{Lease: 500 * time.Millisecond, Logger: b.logger}, DeadLetters: deadLetters, DeadLetterTopic: "dead"})
	m := b.start(once, b.handler(byRecord, refused), franz.Config{})
	until(t, "both records", func() bool { return b.committed("orders")[0] == 2 })
	m.leave()
	b.only("dead")
	wantLog(t, b, "level=ERROR", "panic", "of the publisher", "id="+orderID(0), "position=0-0-", "stack=")
}

// A handler that ends its goroutine, as the assertions of tests do, takes nothing along: its record comes again, in its
// place, and the attempt counts.
func TestWorker_HandlerThatEndsItsGoroutineRunsAgain(t *testing.T) {
	t.Parallel()
	for _, order := range []franz.Order{franz.PerPartition, franz.PerKey} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			b.produce(0, 3, 1, 1)
			once := b.processor(consumer.Config{Policy: oncemill.Policy{Lease: 500 * time.Millisecond, Logger: b.logger}})
			attempts := make(chan int, 2)
			m := b.start(once, func(ctx context.Context, rec *kgo.Record) error {
				if string(rec.Value) == orderID(0) {
					attempts <- oncemill.FromContext(ctx).Attempt
					if len(attempts) == 1 {
						runtime.Goexit()
					}
				}
				return b.handler(byPartition, nil)(ctx, rec)
			}, franz.Config{Order: order})
			until(t, "all", func() bool { return b.committed("orders")[0] == 3 })
			m.leave()
			b.wantOnce(t, 3)
			b.wantOrder(t)
			if first, second := <-attempts, <-attempts; first != 1 || second != 2 {
				t.Errorf("attempts %d and %d, want 1 and 2", first, second)
			}
			wantLog(t, b, "level=ERROR", "runtime.Goexit", "id="+orderID(0), "position=0-0-")
		})
	}
}
