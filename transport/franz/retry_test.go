package franz_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

func (b *bench) publisher(opts ...kgo.Opt) *franz.Publisher {
	b.t.Helper()
	pub, err := franz.NewPublisher(b.newClient(append(franz.PublisherOpts(), opts...)...), franz.PublisherConfig{})
	if err != nil {
		b.t.Fatal(err)
	}
	return pub
}

// retrying returns a bench with two retry topics, and a config and option for workers.
func retrying(t *testing.T) (*bench, franz.Config, kgo.Opt) {
	t.Helper()
	b := newBench(t, 1, kfake.SeedTopics(1, "soon", "later", "dead"))
	return b, franz.Config{
		Retry: []franz.RetryTopic{{Topic: "soon", Delay: 100 * time.Millisecond}, {Topic: "later", Delay: 200 * time.Millisecond}},
	}, kgo.ConsumeTopics("orders", "soon", "later")
}

func TestWorker_FailedRecordsGoThroughRetryTopicsToTheDeadLetters(t *testing.T) {
	t.Parallel()
	const n, attempts = 20, 5
	b, config, topics := retrying(t)
	b.produce(0, n, 1, 2)
	once := b.processor(consumer.Config{Policy: oncemill.Policy{MaxAttempts: attempts}, DeadLetters: b.publisher(), DeadLetterTopic: "dead"})
	began := time.Now()
	var seen []oncemill.Run
	m := b.start(once, b.handler(byRecord, func(ctx context.Context, id string, _ int) error {
		if id == orderID(7) {
			seen = append(seen, oncemill.FromContext(ctx)) // one at a time
			return errors.New("never")
		}
		return nil
	}), config, topics)
	until(t, "the others, which do not wait", func() bool { return b.finished() == n-1 })
	until(t, "the attempts", func() bool { return b.runsOf(orderID(7)) == attempts })
	took := time.Since(began)
	until(t, "the commit behind the last copy", func() bool { return b.committed("later")[0] == 3 })
	m.leave()
	if want := 100*time.Millisecond + 3*200*time.Millisecond; took < want {
		t.Errorf("the last attempt came after %v, want at least %v", took, want)
	}
	if runs := b.runsOf(orderID(7)); runs != attempts {
		t.Errorf("%d runs, want %d", runs, attempts)
	}
	for i, run := range seen {
		if run.Attempt != i+1 || run.Key.Handler != "charge" || run.Key.ID != orderID(7) {
			t.Errorf("run %d is attempt %d of %v", i+1, run.Attempt, run.Key)
		}
	}
	letter := b.only("dead")
	if topic, attempt := headerOf(letter, producer.HeaderTopic), headerOf(letter, producer.HeaderAttempts); topic != "orders" || attempt != "5" {
		t.Errorf("the dead letter is from %q after %q attempts", topic, attempt)
	}
	for _, h := range letter.Headers {
		if strings.HasPrefix(h.Key, "oncemill-not-before") || strings.HasPrefix(h.Key, "oncemill-position") {
			t.Errorf("the dead letter has the retry topic's header %s", h.Key)
		}
	}
	if got := b.committed("orders")[0]; got != n {
		t.Errorf("committed %d, want %d", got, n)
	}
}

func TestWorker_RetryCopyIsTheSameMessage(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	record := &kgo.Record{Topic: "orders", Key: []byte{0xff, 1}, Value: []byte("o0"), Headers: []kgo.RecordHeader{
		{Key: "ce_id", Value: []byte("17")}, {Key: "ce_source", Value: []byte("shop")}, {Key: "binary", Value: []byte{0, 0xfe}},
		{Key: "_watermill_message_uuid", Value: []byte("u-1")},
	}}
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
	copied := b.only("soon")
	got := map[string]string{}
	for _, h := range copied.Headers {
		got[h.Key] = string(h.Value)
	}
	delete(got, "oncemill-not-before")
	want := map[string]string{
		"ce_id": "17", "ce_source": "shop", "binary": "\x00\xfe", "_watermill_message_uuid": "u-1",
		"oncemill-purpose": "retry", "oncemill-topic": "orders", "oncemill-position": "0-0-0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if !bytes.Equal(copied.Key, record.Key) || string(copied.Value) != "o0" {
		t.Errorf("the copy is %q: %q", copied.Key, copied.Value)
	}
	if runs := b.runsOf("o0"); runs != 2 {
		t.Errorf("%d runs, want 2", runs)
	}
}

func TestWorker_RecordWaitsInItsPlaceWhenItsRetryTopicDoesNotTakeIt(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	b.produce(0, 3, 1, 0)
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "soon", Err: kerr.PolicyViolation, Count: -1})
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, func(_ context.Context, id string, run int) error {
		if id == orderID(1) && run < 3 {
			return errors.New("not yet")
		}
		return nil
	}), config, topics)
	until(t, "all", func() bool { return b.finished() == 3 })
	m.leave()
	b.wantOrder(t)
	wantLog(t, b, "level=WARN", "retry topic", "offset=1")
	if got := b.committed("orders")[0]; got != 3 {
		t.Errorf("committed %d, want 3", got)
	}
}

func TestWorker_RetryTopicsOfOthersStopIt(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	foreign := &kgo.Record{Topic: "soon", Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte("x")}, {Key: producer.HeaderTopic, Value: []byte("refunds")}}}
	if err := b.client.ProduceSync(t.Context(), foreign).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, nil), config, topics)
	if err := as[*dedupstore.SetupError](t, m.wait()); !strings.Contains(err.Error(), "refunds") {
		t.Errorf("error %q does not name the other topic", err)
	}
	if got := b.committed("soon")[0]; got > 0 {
		t.Errorf("committed %d: another group's record was passed over", got)
	}
}

// To run dead letters again, one needs them as they were.
func TestWorker_DeadLetterThatFailsKeepsItsHeaders(t *testing.T) {
	t.Parallel()
	b, config, topics := retrying(t)
	dead := order(0)
	for name, value := range map[string]string{
		producer.HeaderPurpose: producer.PurposeDeadLetter, producer.HeaderTopic: "payments", producer.HeaderOutcome: "failed",
		producer.HeaderFence: "3", producer.HeaderOriginalID: "p1",
	} {
		dead.Headers = append(dead.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if err := b.client.ProduceSync(t.Context(), dead).FirstErr(); err != nil {
		t.Fatal(err)
	}
	runs, ended := 0, make(chan error, 1) // one at a time
	m := b.start(b.processor(consumer.Config{}), func(_ context.Context, rec *kgo.Record) error {
		if runs++; runs == 1 {
			return errors.New("the rerun cannot be published")
		}
		header := producer.Header{}
		for _, h := range rec.Headers {
			header[h.Key] = string(h.Value)
		}
		again, err := consumer.Rerun(producer.Message{Header: header, Payload: rec.Value})
		if err == nil && again.Topic != "payments" {
			err = errors.New("it would run again in " + again.Topic)
		}
		ended <- err
		return nil
	}, config, topics)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	m.leave()
}

// One offset a partition is all that Kafka keeps of what is settled.
func TestWorker_RecordThatWaitsForLongBeforeSettledOnesIsSaid(t *testing.T) {
	for name, policy := range map[string]oncemill.Policy{
		"Window":        {Window: 2 * time.Second},
		"FailureWindow": {Window: time.Hour, FailureWindow: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy.Lease = time.Second
			recordWaits(t, policy)
		})
	}
}

func recordWaits(t *testing.T, policy oncemill.Policy) {
	t.Helper()
	const n, line = 20, "record waits for longer than half of the policy's Window or FailureWindow"
	b := newBench(t, 1)
	once := b.processor(consumer.Config{Policy: policy})
	m := b.start(once, b.handler(byRecord, func(_ context.Context, id string, _ int) error {
		if id == orderID(0) {
			return oncemill.RetryAfter(time.Hour, errors.New("not today"))
		}
		return nil
	}), franz.Config{Order: franz.PerKey})
	b.produce(0, 1, 1, 0)
	until(t, "the record that waits", func() bool { return b.started() == 1 })
	lasts(1500 * time.Millisecond)
	if strings.Contains(b.log.String(), line) {
		t.Error("said although nothing is settled behind it")
	}
	b.produce(1, n, 1, 0)
	until(t, "the others, and the line", func() bool { return b.finished() == n && strings.Contains(b.log.String(), line) })
	m.leave()
	wantLog(t, b, "level=ERROR", line, "partition=orders/0", "offset=0", "window=2s")
	if said := strings.Count(b.log.String(), line); said != 1 {
		t.Errorf("%d lines, want one a minute", said)
	}
}
