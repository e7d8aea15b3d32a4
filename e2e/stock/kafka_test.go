package stock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

var errDeclined = errors.New("declined")

func TestKafka_NothingIsLostOrRepeatedWhileProcessesComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	var mu sync.Mutex
	charged := map[string]int{}
	r.handle = func(msg *message.Message, _ int) error {
		<-time.After(2 * time.Millisecond)
		if err := msg.Context().Err(); err != nil { // by a shutdown: there is no drain
			return oncemill.NoEffect(err)
		}
		mu.Lock()
		defer mu.Unlock()
		charged[string(msg.Payload)]++
		return nil
	}
	var names []string
	for i := range 240 {
		name := fmt.Sprintf("o%03d", i)
		names = append(names, name)
		r.publish(int32(i%3), name)
	}
	for range 3 {
		s, before := r.serve(), r.deliveries()
		until(t, "some messages", func() bool { return r.deliveries() >= before+30 })
		s.stop()
	}
	r.serve()
	r.awaitCommitted(len(names))
	mu.Lock()
	defer mu.Unlock()
	for _, name := range names {
		if charged[name] != 1 {
			t.Errorf("%s was charged %d times, want once", name, charged[name])
		}
	}
}

func TestKafka_MessagesOfBeforeTheFirstSubscriptionAreConsumed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.publish(0, "o1")
	r.serve()
	r.awaitCommitted(1)
	r.wantRunsOnce([]string{"o1"})
}

func TestBareKafka_MessagesOfBeforeTheFirstSubscriptionAreSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.subscriber = kafka.DefaultSaramaSubscriberConfig() // Consumer.Offsets.Initial is OffsetNewest
	r.publish(0, "o1")
	r.serve()
	n := 0
	until(t, "a later message", func() bool { // the subscription begins some time after Subscribe
		n++
		if n%50 == 1 {
			r.publish(0, fmt.Sprintf("later-%d", n))
		}
		return r.deliveries() > 0
	})
	if r.ran("o1") != 0 {
		t.Error("o1 was not skipped")
	}
}

// transact has a producer abort the transactions of some messages, and commit those of others.
func (r *rig) transact(aborted, committed string) {
	r.t.Helper()
	upstream, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.ListenAddrs()...), kgo.TransactionalID("upstream"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer upstream.Close()
	for _, payload := range []string{aborted, committed} {
		if err := upstream.BeginTransaction(); err != nil {
			r.t.Fatal(err)
		}
		record := &kgo.Record{Topic: "orders", Value: []byte(payload), Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(payload)}}}
		if err := upstream.ProduceSync(r.t.Context(), record).FirstErr(); err != nil {
			r.t.Fatal(err)
		}
		if err := upstream.EndTransaction(r.t.Context(), kgo.TransactionEndTry(payload == committed)); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestKafka_MessagesOfAbortedTransactionsAreNotHandled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.transact("aborted", "committed")
	r.serve()
	until(t, "what is committed", func() bool { return r.ran("committed") == 1 })
	if r.ran("aborted") > 0 {
		t.Error("a message ran whose transaction was aborted")
	}
}

func TestBareKafka_MessagesOfAbortedTransactionsAreHandled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.subscriber.Consumer.IsolationLevel = sarama.ReadUncommitted // Sarama's default
	r.transact("aborted", "committed")
	r.serve()
	until(t, "what is committed", func() bool { return r.ran("committed") == 1 })
	if r.ran("aborted") != 1 {
		t.Error("a message did not run whose transaction was aborted")
	}
}

func TestKafka_RetryIsDelayedAndBlocksItsPartitionAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	retried := make(chan struct{})
	var failed time.Time
	r.handle = func(msg *message.Message, n int) error {
		if string(msg.Payload) == "retry" && n == 1 {
			failed = time.Now()
			close(retried)
			return oncemill.RetryAfter(time.Second, errDeclined)
		}
		return nil
	}
	r.publish(0, "retry", "behind")
	r.serve()
	within(t, "the first try", retried)
	r.publish(1, "beside")
	r.awaitCommitted(3)
	if d := r.times("behind")[0].Sub(failed); d < 900*time.Millisecond {
		t.Errorf("what is behind the retry came after %v, want after 1 s", d)
	}
	if !r.times("beside")[0].Before(r.times("behind")[0]) {
		t.Error("another partition had to wait, too")
	}
	if n := r.ran("retry"); n != 2 {
		t.Errorf("ran %d times, want 2", n)
	}
	if n := len(r.times("retry")); n > 3 { // the hold spends the delay
		t.Errorf("delivered %d times", n)
	}
}

// letters remembers dead letters.
type deadLetters struct{ sent atomic.Int64 }

func (l *deadLetters) Publish(_ context.Context, messages ...producer.Message) error {
	l.sent.Add(int64(len(messages)))
	return nil
}

func TestKafka_FailedMessageIsDeadLetteredAndItsPartitionGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	dead := &deadLetters{}
	r.consumer.DeadLetters, r.consumer.DeadLetterTopic = dead, "dead"
	r.handle = func(msg *message.Message, _ int) error {
		if string(msg.Payload) == "bad" {
			return oncemill.Permanent(errDeclined)
		}
		return nil
	}
	r.publish(0, "bad", "behind")
	r.serve()
	r.awaitCommitted(2)
	if n := dead.sent.Load(); n != 1 {
		t.Errorf("%d dead letters, want one", n)
	}
	r.wantRunsOnce([]string{"bad", "behind"})
}

func TestBareKafka_FailedMessageWithoutDeadLettersBlocksItsPartition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.consumer.MaxWait = 20 * time.Millisecond
	r.handle = func(msg *message.Message, _ int) error { return oncemill.Permanent(errDeclined) }
	r.publish(0, "bad", "behind")
	r.serve()
	until(t, "redeliveries", func() bool { return len(r.times("bad")) >= 10 })
	if n := r.ran("bad"); n != 1 || r.ran("behind") != 0 || r.committed() > 0 {
		t.Errorf("ran %d times, what is behind %d times, %d committed; want 1, 0 and none", n, r.ran("behind"), r.committed())
	}
}

func TestKafka_HandlerThatShutdownOvertakesDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	started, release := make(chan struct{}), make(chan struct{})
	var interrupted atomic.Bool
	r.handle = func(msg *message.Message, _ int) error {
		if string(msg.Payload) == "o1" {
			close(started)
			<-release
			interrupted.Store(msg.Context().Err() != nil) // there is no drain
		}
		return nil
	}
	r.publish(0, "o1", "o2")
	first := r.serve()
	within(t, "the handler", started)
	var stopping sync.WaitGroup
	stopping.Go(first.stop)
	lasts(2 * time.Second) // so that the adapter has heard of it
	close(release)
	stopping.Wait()
	if !interrupted.Load() || r.committed() > 0 {
		t.Errorf("interrupted: %v, %d committed; want an ack that was lost", interrupted.Load(), r.committed())
	}
	r.serve()
	r.awaitCommitted(2)
	r.wantRunsOnce([]string{"o1", "o2"})
}

func TestKafka_RebalanceDuringAHandlerDoesNotRunItAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.subscriber.Consumer.Group.Heartbeat.Interval = 100 * time.Millisecond
	r.subscriber.Consumer.MaxWaitTime = 50 * time.Millisecond // fetches and heartbeats share a connection
	started, release := make(chan struct{}), make(chan struct{})
	r.handle = func(msg *message.Message, _ int) error {
		if string(msg.Payload) == "o1" {
			close(started)
			<-release
		}
		return nil
	}
	r.publish(0, "o1", "o2")
	r.publish(1, "o3", "o4")
	r.serve()
	within(t, "the handler", started)
	r.serve()
	until(t, "the rebalance", func() bool { return r.group().State == "PreparingRebalance" })
	lasts(3 * time.Second) // so that the first process has heard of it, by a heartbeat
	close(release)
	r.awaitCommitted(4)
	r.wantRunsOnce([]string{"o1", "o2", "o3", "o4"})
	if n := len(r.times("o1")); n != 2 {
		t.Errorf("o1 was delivered %d times; its ack should have been lost with the rebalance", n)
	}
}

// lasts waits for something that takes its time.
func lasts(d time.Duration) { <-time.After(d) }

// A downStore answers when it is up.
type downStore struct {
	dedupstore.Store
	down atomic.Bool
}

func (s *downStore) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *downStore) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if s.down.Load() {
		return dedupstore.Answer{}, errors.New("store is down")
	}
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

func TestKafka_NothingRunsOrIsCommittedWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	store := &downStore{Store: r.store}
	store.down.Store(true)
	r.store = store
	r.consumer.MaxWait = 50 * time.Millisecond
	r.consumer.Policy.Backoff.Min = 20 * time.Millisecond
	r.publish(0, "o1", "o2")
	r.serve()
	until(t, "some tries", func() bool { return r.deliveries() >= 5 })
	if r.ran("o1") != 0 || r.committed() > 0 {
		t.Errorf("ran %d times, %d committed", r.ran("o1"), r.committed())
	}
	store.down.Store(false)
	r.awaitCommitted(2)
	r.wantRunsOnce([]string{"o1", "o2"})
}

func TestKafka_AllHeadersReachTheGuard(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	pub := r.publisher(publisherConfig())
	for range 2 {
		msg := message.NewMessage("", []byte("a CloudEvent"))
		msg.Metadata = message.Metadata{"ce_id": "A-1", "ce_source": "/shop"}
		if err := pub.Publish("orders", msg); err != nil {
			t.Fatal(err)
		}
	}
	r.serve()
	r.awaitCommitted(2)
	r.wantRunsOnce([]string{"a CloudEvent"})
}

func (r *rig) publisher(config *sarama.Config) message.Publisher {
	r.t.Helper()
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: r.cluster.ListenAddrs(), OverwriteSaramaConfig: config}, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { pub.Close() })
	return pub
}

// produced publishes a message and returns the request that it came with.
func (r *rig) produced(config *sarama.Config) (acks int16, idempotent bool) {
	r.t.Helper()
	requests := make(chan *kmsg.ProduceRequest, 1)
	r.cluster.ControlKey(int16(kmsg.Produce), func(request kmsg.Request) (kmsg.Response, error, bool) {
		requests <- request.(*kmsg.ProduceRequest)
		return nil, nil, false
	})
	if err := r.publisher(config).Publish("orders", message.NewMessage("o1", []byte("o1"))); err != nil {
		r.t.Fatal(err)
	}
	request := <-requests
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(request.Topics[0].Partitions[0].Records); err != nil {
		r.t.Fatal(err)
	}
	return request.Acks, batch.ProducerID >= 0
}

func TestKafka_PublisherWaitsForAllReplicasAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	if acks, idempotent := newRig(t, 1).produced(publisherConfig()); acks != -1 || !idempotent {
		t.Errorf("acks %d, idempotent %v; want -1 and true", acks, idempotent)
	}
}

func TestBareKafka_PublisherWaitsForTheLeaderAlone(t *testing.T) {
	t.Parallel()
	if acks, idempotent := newRig(t, 1).produced(kafka.DefaultSaramaSyncPublisherConfig()); acks != 1 || idempotent {
		t.Errorf("acks %d, idempotent %v; want 1 and false", acks, idempotent)
	}
}

func TestKafka_PositionIsNotKnownToTheGuard(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	dead := &deadLetters{}
	r.consumer.DeadLetters, r.consumer.DeadLetterTopic = dead, "dead"
	r.consumer.Extractors = []producer.Extractor{producer.ExtractPosition}
	r.publish(0, "o1")
	r.serve()
	r.awaitCommitted(1)
	if n := dead.sent.Load(); n != 1 || r.ran("o1") != 0 {
		t.Errorf("%d dead letters, ran %d times; want it rejected for having no ID", n, r.ran("o1"))
	}
}
