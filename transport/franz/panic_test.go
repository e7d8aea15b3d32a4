package franz_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
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

// A handler that ends its goroutine, as the assertions of tests do, takes that of its partition along, which nobody can give back.
func TestWorker_HandlerThatEndsItsGoroutineEndsTheRun(t *testing.T) {
	t.Parallel()
	for _, order := range []franz.Order{franz.PerPartition, franz.PerKey} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			b.produce(0, 2, 1, 0)
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, goexit), franz.Config{Order: order})
			wantGoexit(t, m.wait())
			if n := b.committed("orders")[0]; n > 0 {
				t.Errorf("committed %d, want what is not handled to come again", n)
			}
		})
	}
}

func TestShareWorker_HandlerThatEndsItsGoroutineEndsTheRun(t *testing.T) {
	t.Parallel()
	b := newShareBench(t, 1)
	b.put(0, 2, 1)
	var well atomic.Bool
	ends := func(ctx context.Context, id string, run int) error {
		if well.Load() {
			return nil
		}
		return goexit(ctx, id, run)
	}
	once := b.processor(consumer.Config{Policy: oncemill.Policy{Lease: 500 * time.Millisecond}})
	m := b.begin(once, b.handler(byRecord, ends), franz.ShareConfig{})
	wantGoexit(t, m.wait())
	m.cl.CloseAllowingRebalance()
	well.Store(true)
	m = b.begin(once, b.handler(byRecord, ends), franz.ShareConfig{})
	b.wantSettled(b.topic)
	m.leave()
}

func goexit(_ context.Context, id string, _ int) error {
	if id == orderID(0) {
		runtime.Goexit()
	}
	return nil
}

func wantGoexit(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "runtime.Goexit") {
		t.Errorf("Run: %v, want what the handler did", err)
	}
}
