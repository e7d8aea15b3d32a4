package franz_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

func messages(n int) []producer.Message {
	list := make([]producer.Message, n)
	for i := range list {
		list[i] = producer.Message{ID: orderID(i), Topic: "orders", Payload: []byte(orderID(i))}
	}
	return list
}

func failuresOf(t testing.TB, err error) []producer.Failure {
	t.Helper()
	return as[*producer.PublishError](t, err).Failures
}

func TestPublisher_StoresEachMessageAsItIs(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	m := producer.Message{ID: "o1", Topic: "orders", Key: "ada", Payload: []byte("x"), Header: producer.Header{"binary": "\x00\xff", "plain": "text", "oncemill-name": "receipt"}}
	if err := b.publisher().Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	rec := b.only("orders")
	got := map[string]string{}
	for _, h := range rec.Headers {
		got[h.Key] = string(h.Value)
	}
	if diff := cmp.Diff(map[string]string{"oncemill-id": "o1", "binary": "\x00\xff", "plain": "text"}, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if string(rec.Key) != "ada" || string(rec.Value) != "x" {
		t.Errorf("stored %q: %q", rec.Key, rec.Value)
	}
}

func TestPublisher_KeepsTombstonesAndEmptyPayloadsApart(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	err := b.publisher().Publish(t.Context(),
		producer.Message{ID: "a", Topic: "orders", Header: producer.Header{producer.HeaderKey: "k"}}, producer.Message{ID: "b", Topic: "orders", Payload: []byte{}})
	if err != nil {
		t.Fatal(err)
	}
	found := b.records("orders")
	if found[0].Value != nil || found[1].Value == nil {
		t.Errorf("stored %v and %v, want nil and empty", found[0].Value, found[1].Value)
	}
	if string(found[0].Key) != "k" || found[1].Key != nil {
		t.Errorf("stored keys %q and %q, want k, from the header, and none", found[0].Key, found[1].Key)
	}
}

func TestPublisher_RefusesWhatKafkaCannotCarryAndPublishesTheRest(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	bad := []producer.Message{
		{ID: "1", Topic: "a b"},
		{ID: "2", Topic: ".."},
		{ID: "3", Topic: strings.Repeat("x", 250)},
		{ID: "4"},
		{Topic: "orders"},
		{ID: "6", Topic: "orders", NotBefore: time.Now().Add(time.Hour)},
		{ID: "7", Topic: "orders", Header: producer.Header{"": "x"}},
		{ID: "8", Topic: "orders", Header: producer.Header{"\xff": "x"}},
		{ID: "9", Topic: "orders", Key: "a", Header: producer.Header{producer.HeaderKey: "b"}},
		{ID: "10", Topic: "orders", Payload: make([]byte, 2<<20)},
	}
	failures := failuresOf(t, b.publisher().Publish(t.Context(), append(bad, messages(1)...)...))
	if len(failures) != len(bad) {
		t.Fatalf("%d failures, want %d: %v", len(failures), len(bad), failures)
	}
	for i, f := range failures {
		if f.Index != i || f.ID != bad[i].ID || f.Unknown {
			t.Errorf("failure %d is %+v", i, f)
		}
		if i < 9 {
			as[*dedupstore.InvalidError](t, f.Err)
		}
	}
	if rec := b.only("orders"); string(rec.Value) != orderID(0) {
		t.Errorf("stored %q", rec.Value)
	}
}

func TestPublisher_OneTooLargeMessageDoesNotTakeOthersOfItsBatchAlong(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	if err := b.cluster.CreateTopic("small", 1, map[string]string{"max.message.bytes": "2000"}); err != nil {
		t.Fatal(err)
	}
	list := messages(5)
	for i := range list {
		list[i].Topic = "small"
	}
	list[2].Payload = bytes.Repeat([]byte("xyz123"), 1000)
	failures := failuresOf(t, b.publisher(kgo.ProducerLinger(20*time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression())).Publish(t.Context(), list...))
	if len(failures) != 1 || failures[0].Index != 2 || failures[0].Unknown || !errors.Is(failures[0].Err, kerr.MessageTooLarge) {
		t.Errorf("failures %+v, want the third alone, refused", failures)
	}
	if stored := len(b.records("small")); stored != 4 {
		t.Errorf("%d stored, want 4", stored)
	}
}

func TestPublisher_SaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		topic   string
		err     *kerr.Error
		unknown bool
	}{
		{"topic that does not exist", "refunds", nil, true},
		{"topic that may not be written", "orders", kerr.TopicAuthorizationFailed, true},
		{"record that its topic does not take", "orders", kerr.InvalidRecord, false},
		{"topic whose name is refused", "orders", kerr.InvalidTopicException, false},
		{"policy", "orders", kerr.PolicyViolation, true},
		{"time of a clock that is wrong", "orders", kerr.InvalidTimestamp, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			if tc.err != nil {
				b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: tc.err, Count: -1})
			}
			failures := failuresOf(t, b.publisher().Publish(t.Context(), producer.Message{ID: "a", Topic: tc.topic}))
			if len(failures) != 1 || failures[0].Unknown != tc.unknown {
				t.Errorf("failures %+v, want unknown %v", failures, tc.unknown)
			}
		})
	}
}

func TestPublisher_SaysThatATopicWasMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	pub := b.publisher()
	if err := pub.Publish(t.Context(), messages(1)...); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.DeleteTopics(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	f := failuresOf(t, pub.Publish(t.Context(), messages(1)...))[0]
	if !f.Unknown || !errors.Is(f.Err, kerr.UnknownTopicID) || !strings.Contains(f.Err.Error(), "start the process again") {
		t.Errorf("%+v does not say what to do", f)
	}
	if err := b.publisher().Publish(t.Context(), messages(1)...); err != nil { // as it says
		t.Error(err)
	}
}

func TestPublisher_SaysThatARightComesTooLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.cluster.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) { // once
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil, true
	})
	pub := b.publisher()
	// Makes the client know the topic without asking for a producer ID. While it learns of a topic's partitions, kgo
	// 1.22.2 without a linger may fail none of the records that it has just given to them.
	large := messages(1)
	large[0].Payload = make([]byte, 2_000_000)
	if f := failuresOf(t, pub.Publish(t.Context(), large...))[0]; !errors.Is(f.Err, kerr.MessageTooLarge) {
		t.Fatalf("%+v, want %v", f, kerr.MessageTooLarge)
	}
	for range 2 {
		f := failuresOf(t, pub.Publish(t.Context(), messages(1)...))[0]
		if !f.Unknown || !errors.Is(f.Err, kerr.ClusterAuthorizationFailed) || !strings.Contains(f.Err.Error(), "start the process again") {
			t.Errorf("%+v does not say what to do", f)
		}
	}
	if err := b.publisher().Publish(t.Context(), messages(1)...); err != nil { // as it says
		t.Error(err)
	}
}

func TestPublisher_MessageWithoutAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	release := make(chan struct{})
	b.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.SleepControl(func() { <-release })
		return nil, nil, false
	})
	pub, err := franz.NewPublisher(b.newClient(franz.PublisherOpts()...),
		franz.PublisherConfig{AckTimeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	failures := failuresOf(t, pub.Publish(t.Context(), messages(2)...))
	if len(failures) != 2 || !failures[0].Unknown || !failures[1].Unknown {
		t.Errorf("failures %+v, want both unknown", failures)
	}
	hurried, giveUp := context.WithTimeout(t.Context(), 2*time.Second) // as a relay's PublishTimeout, which ends first
	defer giveUp()
	failures = failuresOf(t, pub.Publish(hurried, messages(1)...))
	if err := failures[0].Err; !failures[0].Unknown || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "its partition may have no leader") {
		t.Errorf("failures %+v, want one, unknown, that says what may be wrong", failures)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	failures = failuresOf(t, pub.Publish(ctx, messages(1)...))
	if len(failures) != 1 || !failures[0].Unknown || failures[0].Err.Error() != "enough" {
		t.Errorf("failures %+v, want one, unknown, with the context's cause", failures)
	}
	close(release)
	until(t, "the messages that were unknown", func() bool { return b.cluster.PartitionInfo("orders", 0).HighWatermark == 3 })
}

func TestPublisher_LostAnswersMakeNoCopies(t *testing.T) {
	t.Parallel()
	const callers, each = 4, 50
	b := newBench(t, 1)
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: 5}) // applied all the same
	pub := b.publisher()
	var wait sync.WaitGroup
	var failed atomic.Int32
	for c := range callers {
		wait.Go(func() {
			for _, m := range messages(each) {
				m.ID += strings.Repeat("x", c+1)
				if pub.Publish(t.Context(), m) != nil {
					failed.Add(1)
				}
			}
		})
	}
	wait.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d calls failed", n)
	}
	if stored := len(b.records("orders")); stored != callers*each {
		t.Errorf("%d stored, want %d", stored, callers*each)
	}
}

// produceRequests counts what a client sends.
type produceRequests struct{ n atomic.Int32 }

func (r *produceRequests) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == int16(kmsg.Produce) && err == nil {
		r.n.Add(1)
	}
}

// Each message by itself takes kgo's linger, in which nobody else may send.
func TestPublisher_BatchesLargerThanATopicTakesAreNotSentMessageByMessage(t *testing.T) {
	t.Parallel()
	topic := fmt.Sprintf("small-batches-%d", topics.Add(1)) // of the shared broker
	server := kafkatest.Shared(t)
	server.CreateTopic(topic, 1)
	changed, err := kadm.NewClient(server.Client()).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: "max.message.bytes", Value: kadm.StringPtr("20000")}}, topic)
	if err == nil {
		err = changed[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
	var requests produceRequests
	pub, err := franz.NewPublisher(server.Client(append(franz.PublisherOpts(), kgo.WithHooks(&requests))...), franz.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	const n, large = 200, 77
	messages := make([]producer.Message, n)
	for i := range messages {
		payload := make([]byte, 1000)
		if i == large {
			payload = make([]byte, 30_000)
		}
		rand.Read(payload) // which cannot be compressed
		messages[i] = producer.Message{ID: orderID(i), Topic: topic, Payload: payload}
	}
	failures := as[*producer.PublishError](t, pub.Publish(t.Context(), messages...)).Failures
	if len(failures) != 1 || failures[0].Index != large || failures[0].Unknown || !errors.Is(failures[0].Err, kerr.MessageTooLarge) {
		t.Errorf("failures %v, want that of message %d, refused", failures, large)
	}
	if sent := requests.n.Load(); sent > n/2 {
		t.Errorf("%d requests for %d messages", sent, n)
	}
	found := map[string]int{}
	reader := server.Client(kgo.ConsumeTopics(topic))
	until(t, "all but one", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		reader.PollFetches(ctx).EachRecord(func(rec *kgo.Record) { found[string(rec.Value)]++ })
		return len(found) == n-1
	})
	for i, m := range messages {
		if i != large && found[string(m.Payload)] != 1 {
			t.Errorf("message %d is there %d times, want once", i, found[string(m.Payload)])
		}
	}
}

// A partition that has no leader keeps what is given to the client for ever, if a broker may have had the first of it.
func TestPublisher_TopicThatHangsDoesNotFillTheBufferOfTheOthers(t *testing.T) {
	t.Parallel()
	const room, calls, each = 100, 10, 20
	b := newBench(t, 1, kfake.SeedTopics(1, "good"))
	hangs := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: kerr.RequestTimedOut, Count: -1}) // as where too few replicas answer
	pub, err := franz.NewPublisher(b.newClient(append(franz.PublisherOpts(), kgo.MaxBufferedRecords(room))...), franz.PublisherConfig{AckTimeout: waitLimit})
	if err != nil {
		t.Fatal(err)
	}
	for range calls { // as a relay does, again and again
		bounded, end := context.WithTimeout(t.Context(), 200*time.Millisecond)
		failures := failuresOf(t, pub.Publish(bounded, messages(each)...))
		end()
		for _, f := range failures {
			if !f.Unknown {
				t.Fatalf("failure %+v, want unknown", f)
			}
		}
	}
	failures := failuresOf(t, pub.Publish(t.Context(), messages(1)...))
	if !strings.Contains(failures[0].Err.Error(), "kgo.MaxBufferedRecords") {
		t.Errorf("error %v, want one that says that the topic gets no more", failures[0].Err)
	}
	if err := pub.Publish(t.Context(), producer.Message{ID: "good", Topic: "good"}); err != nil {
		t.Errorf("another topic's message: %v", err)
	}
	hangs.Remove()
	until(t, "the topic to get messages again", func() bool {
		return pub.Publish(t.Context(), producer.Message{ID: "again", Topic: "orders"}) == nil
	})
}

// A message that is refused is sent again alone, which waits for the calls of others, and those that come wait for it.
func TestPublisher_RefusedMessageDoesNotHoldUpOthersForAsLongAsAnotherTopicHangs(t *testing.T) {
	t.Parallel()
	t.Run("first call that hangs", func(t *testing.T) { testRefusedWhileAnotherHangs(t, waitLimit, 0) })
	t.Run("calls have hung before", func(t *testing.T) { testRefusedWhileAnotherHangs(t, time.Hour, 1) })
}

func testRefusedWhileAnotherHangs(t *testing.T, ackTimeout time.Duration, before int64) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "good"))
	if err := b.cluster.CreateTopic("small", 1, map[string]string{"max.message.bytes": "2000"}); err != nil {
		t.Fatal(err)
	}
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders", Err: kerr.RequestTimedOut, Count: -1})
	cl := b.newClient(append(franz.PublisherOpts(), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	pub, err := franz.NewPublisher(cl, franz.PublisherConfig{AckTimeout: ackTimeout})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "calls to have hung", func() bool {
		if cl.BufferedProduceRecords() >= before {
			return true
		}
		ctx, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer end()
		_ = failuresOf(t, pub.Publish(ctx, messages(1)...))
		return false
	})
	hanging, end := context.WithCancel(t.Context())
	defer end()
	hung, refused := make(chan error, 1), make(chan error, 1)
	go func() { hung <- pub.Publish(hanging, messages(1)...) }()
	until(t, "the topic to hang", func() bool { return cl.BufferedProduceRecords() > before })
	tooLarge := make([]producer.Message, 8)
	for i := range tooLarge {
		tooLarge[i] = producer.Message{ID: orderID(i), Topic: "small", Payload: make([]byte, 3000)}
	}
	bounded, stop := context.WithTimeout(t.Context(), waitLimit)
	defer stop()
	go func() { refused <- pub.Publish(bounded, tooLarge...) }()
	for published := 0; refused != nil || published < 3; published++ {
		if err := pub.Publish(bounded, producer.Message{ID: "good", Topic: "good"}); err != nil {
			t.Fatalf("another topic's message: %v", err)
		}
		select {
		case err := <-refused:
			for _, f := range failuresOf(t, err) {
				if !f.Unknown || !errors.Is(f.Err, kerr.MessageTooLarge) {
					t.Errorf("failure %+v, want an unknown one of a message that is too large: it was not alone", f)
				}
			}
			refused = nil
		default:
		}
	}
	select {
	case <-hung:
		t.Error("others had to wait until the call that hangs ended")
	default:
		end()
		<-hung
	}
}

// A panicHook panics over the first record that is handed to its client.
type panicHook struct{ once sync.Once }

func (h *panicHook) OnProduceRecordBuffered(*kgo.Record) { h.once.Do(func() { panic("a hook") }) }

func TestPublisher_PanicOfAHookHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	pub := b.publisher(kgo.WithHooks(&panicHook{}))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the hook's panic was swallowed")
			}
		}()
		pub.Publish(t.Context(), messages(1)...) //nolint:errcheck // it panics
	}()
	if err := pub.Publish(t.Context(), messages(2)...); err != nil {
		t.Fatal(err)
	}
}
