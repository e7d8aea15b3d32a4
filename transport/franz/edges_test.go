package franz_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestPublisher_WaitsForRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	if err := b.publisher(kgo.MaxBufferedRecords(10)).Publish(t.Context(), messages(500)...); err != nil {
		t.Fatal(err)
	}
	if n := len(b.records("orders")); n != 500 {
		t.Errorf("%d records are stored, want 500", n)
	}
}

// A refused message is sent again alone, which others of the publisher wait for; but not for longer than they want to.
func TestPublisher_HeedsItsContextWhileAnotherMessageIsSentAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	pub := b.publisher(kgo.ProducerBatchCompression(kgo.NoCompression()))
	release := make(chan struct{})
	var slow atomic.Bool
	b.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if slow.Load() {
			b.cluster.SleepControl(func() { <-release })
		}
		return nil, nil, false
	})
	if err := pub.Publish(t.Context(), producer.Message{ID: "first", Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	ended := make(chan error, 2)
	go func() { ended <- pub.Publish(context.Background(), producer.Message{ID: "slow", Topic: "orders"}) }()
	go func() {
		ended <- pub.Publish(context.Background(), producer.Message{ID: "too large", Topic: "orders", Payload: make([]byte, 2<<20)})
	}()
	lasts(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := pub.Publish(ctx, producer.Message{ID: "impatient", Topic: "orders"})
	failures := failuresOf(t, err)
	if len(failures) != 1 || !failures[0].Unknown || time.Since(began) > 10*time.Second {
		t.Errorf("%+v after %v, want unknown, at once", failures, time.Since(began))
	}
	slow.Store(false)
	close(release)
	<-ended
	<-ended
}

// A shutdown does not wait for a revocation that is under way.
func TestWorker_ShutdownDuringARevocationStartsNothingMore(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	b.produce(0, 400, 2, 0)
	once := b.processor(consumer.Config{})
	config := franz.Config{Grace: 500 * time.Millisecond}
	var late atomic.Int32
	var stopped atomic.Bool
	first := b.start(once, func(ctx context.Context, rec *kgo.Record) error {
		if stopped.Load() {
			late.Add(1)
		}
		if rec.Partition == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		lasts(20 * time.Millisecond)
		return nil
	}, config, kgo.RebalanceTimeout(waitLimit))
	until(t, "a commit", func() bool { return b.committed("orders")[0] > 0 })
	b.start(once, func(ctx context.Context, _ *kgo.Record) error { <-ctx.Done(); return ctx.Err() }, config, kgo.RebalanceTimeout(waitLimit))
	lasts(time.Second) // its joining begins the revocation, which waits for the handler
	began := time.Now()
	first.stop()
	lasts(100 * time.Millisecond)
	stopped.Store(true)
	_ = first.wait()
	if took := time.Since(began); took > waitLimit/4 || late.Load() > 0 {
		t.Errorf("Run took %v with a Grace of 500ms; %d handlers were started after the stop", took, late.Load())
	}
}

// The broker's first answers about a new group do not keep a worker from starting.
func TestWorker_WaitsForTheCoordinatorOfANewCluster(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 1, 1, 0)
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.FindCoordinator}, Err: kerr.CoordinatorNotAvailable, Count: 3})
	var runs atomic.Int32
	b.start(b.processor(consumer.Config{}), func(context.Context, *kgo.Record) error { runs.Add(1); return nil }, franz.Config{})
	until(t, "the record", func() bool { return runs.Load() == 1 })
}

func TestSource_SeveralTopics(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config  franz.Config
		opts    []kgo.Opt
		refused string
	}{
		"static members": {opts: []kgo.Opt{kgo.InstanceID("pod-0")}},
		"retry topics":   {config: franz.Config{Retry: []franz.RetryTopic{{Topic: "later"}}}, refused: "another source"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			for _, topic := range []string{"payments", "later"} {
				if err := b.cluster.CreateTopic(topic, 1, nil); err != nil {
					t.Fatal(err)
				}
			}
			s := b.source(b.processor(consumer.Config{}), franz.SourceConfig{Config: c.config}, c.opts...)
			b.produce(0, 1, 1, 0)
			if err := b.publisher().Publish(t.Context(), producer.Message{ID: "p", Topic: "payments"}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 2)
			var seen atomic.Int32
			for _, topic := range []string{"orders", "payments"} {
				before := seen.Load()
				go func() {
					ended <- s.Run(ctx, topic, consumertest.Blocking(func(context.Context, consumer.Delivery) consumer.Decision {
						seen.Add(1)
						return consumer.Decision{Action: consumer.Ack}
					}))
				}()
				if c.refused != "" && topic == "payments" {
					var refused *dedupstore.SetupError
					if err := <-ended; !errors.As(err, &refused) || !strings.Contains(err.Error(), c.refused) {
						t.Errorf("error %v, want a SetupError that says %q", err, c.refused)
					}
					continue
				}
				until(t, "a record of "+topic, func() bool { return seen.Load() > before })
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if c.refused == "" {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A refused message gets its turn to be sent alone, however much others send.
func TestPublisher_RefusedMessageIsKnownToBeSoWhileOthersSend(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	pub := b.publisher(kgo.ProducerBatchCompression(kgo.NoCompression()))
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	var sent atomic.Int64
	for i := range 16 {
		others.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := pub.Publish(context.Background(), producer.Message{ID: fmt.Sprintf("%d-%d", i, n), Topic: "orders"}); err != nil {
					t.Error(err)
				}
				sent.Add(1)
			}
		})
	}
	until(t, "the others", func() bool { return sent.Load() > 100 })
	began := time.Now()
	err := pub.Publish(t.Context(), producer.Message{ID: "too large", Topic: "orders", Payload: make([]byte, 2<<20)})
	if failures := failuresOf(t, err); len(failures) != 1 || failures[0].Unknown || time.Since(began) > waitLimit/4 {
		t.Errorf("%+v after %v, want refused, soon", failures, time.Since(began))
	}
	before := sent.Load()
	until(t, "the others to go on", func() bool { return sent.Load() > before+100 })
}
