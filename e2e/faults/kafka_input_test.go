package faults_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
)

// gaveUp waits until a member's Run has returned by itself, and returns its error.
func (m *kafkaMember) gaveUp() error {
	m.r.t.Helper()
	timeout := time.NewTimer(waitLimit)
	defer timeout.Stop()
	select {
	case <-m.done:
	case <-timeout.C:
		m.r.t.Fatalf("Run goes on after %v", waitLimit)
	}
	if m.err == nil {
		m.r.t.Fatal("Run returned nil")
	}
	return m.err
}

// idle checks that nothing has happened to the messages.
func (r *kafkaRig) idle() {
	r.t.Helper()
	for p, at := range r.audit(r.t.Context()) {
		if at > 0 {
			r.t.Errorf("offset %d of partition %d is committed", at, p)
		}
	}
	if n := r.Sum().Claims; n > 0 {
		r.t.Errorf("%d claims, want none", n)
	}
}

func TestKafka_UnreachableBrokerIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	r := newKafkaRig(t, fakeKafka(t), kafkaSetup{})
	r.produce(t.Context(), 10)
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	m := r.join(kgo.SeedBrokers("127.0.0.1:"+strconv.Itoa(port)), kgo.RetryTimeout(2*time.Second))
	var setup *dedupstore.SetupError
	if err := m.gaveUp(); !errors.As(err, &setup) || !strings.Contains(err.Error(), strconv.Itoa(port)) {
		t.Errorf("error is %v, want a SetupError with the address", err)
	}
	r.idle()
	m.end()
	r.join()
	r.finish().MustExplain(t)
}

func TestKafka_MissingTopicIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) {
		r := newKafkaRig(t, k, kafkaSetup{})
		r.produce(t.Context(), 10)
		m := r.join(kgo.ConsumeTopics(r.topic, "no-such-topic"))
		var setup *dedupstore.SetupError
		if err := m.gaveUp(); !errors.As(err, &setup) || setup.Subject != `topic "no-such-topic"` {
			t.Errorf("error is %v, want a SetupError that names the topic", err)
		}
		r.idle()
		m.end()
		r.join()
		r.finish().MustExplain(t)
	})
}

func TestKafka_GroupOfOtherMembersIsAnErrorThatSaysWhatToChange(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) {
		r := newKafkaRig(t, k, kafkaSetup{})
		r.produce(t.Context(), 10)
		other := k.client(t, kgo.ConsumerGroup(r.group), kgo.ConsumeTopics(r.topic), kgo.Balancers(kgo.RangeBalancer()),
			kgo.DisableAutoCommit(), kgo.HeartbeatInterval(kafkaSession/5), patient())
		until(t, "the other member", func() bool { _, generation := other.GroupMetadata(); return generation > 0 })
		m := r.join()
		var setup *dedupstore.SetupError
		if err := m.gaveUp(); !errors.As(err, &setup) || !errors.Is(err, kerr.InconsistentGroupProtocol) {
			t.Errorf("error is %v, want a SetupError because of the protocol", err)
		}
		r.idle()
		m.end()
		other.Close()
		r.join()
		r.finish().MustExplain(t)
	})
}

func TestKafka_GroupThatIsNotOfConsumersIsAnErrorThatNamesItsType(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) {
		r := newKafkaRig(t, k, kafkaSetup{})
		r.produce(t.Context(), 10)
		foreignMember(t, k, r.group)
		m := r.join()
		var setup *dedupstore.SetupError
		if err := m.gaveUp(); !errors.As(err, &setup) || !strings.Contains(err.Error(), "connect") {
			t.Errorf("error is %v, want a SetupError that names the type of the group", err)
		}
		r.idle()
	})
}

// foreignMember joins a group as the workers of Kafka Connect do.
func foreignMember(t *testing.T, k kafka, group string) {
	t.Helper()
	cl := k.client(t)
	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.ProtocolType = group, "connect"
	join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 30_000, 30_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "compatible"}}
	for range 2 { // the first answer is the member's ID
		resp, err := join.RequestWith(t.Context(), cl)
		if err != nil {
			t.Fatal(err)
		}
		join.MemberID = resp.MemberID
		if err := kerr.ErrorForCode(resp.ErrorCode); err != nil && !errors.Is(err, kerr.MemberIDRequired) {
			t.Fatal(err)
		}
	}
}

// Each of these records is in the way of all that come behind it in its partition.
func TestKafka_RecordsThatNobodyExpectsGetAnEffectOrADeadLetter(t *testing.T) {
	t.Parallel()
	eachKafka(t, func(t *testing.T, k kafka) {
		r := newKafkaRig(t, k, kafkaSetup{partitions: 1})
		large := []byte(strings.Repeat("h", 900_000))
		id := func(s string) kgo.RecordHeader { return kgo.RecordHeader{Key: producer.HeaderID, Value: []byte(s)} }
		effects := []*kgo.Record{
			{Headers: []kgo.RecordHeader{id("large-header"), {Key: "h", Value: large}}},
			{Headers: []kgo.RecordHeader{id("large-name"), {Key: string(large)}}},
			{Headers: []kgo.RecordHeader{id("bytes"), {Key: "\xff\x00", Value: []byte("\xfe\x00\r\n")}, {}, {}}},
			{Headers: []kgo.RecordHeader{id("large-value")}, Value: large},
			{Headers: []kgo.RecordHeader{id("tombstone")}, Key: []byte("k")},
			{Headers: []kgo.RecordHeader{id("twice"), id("twice")}},
		}
		deadLetters := []*kgo.Record{
			{},
			{Value: []byte("no ID")},
			{Headers: []kgo.RecordHeader{id("\xff\xfe")}, Value: []byte("not UTF-8")},
			{Headers: []kgo.RecordHeader{id(string(large))}, Value: []byte("large")},
			{Headers: []kgo.RecordHeader{id("twice")}, Value: []byte("other content")},
			{Headers: []kgo.RecordHeader{{Key: "h", Value: large}}},
		}
		r.mu.Lock()
		for _, record := range append(effects, deadLetters...) {
			r.append(t.Context(), record)
		}
		r.mu.Unlock()
		r.produce(t.Context(), 10)
		r.join()
		b := r.finish()
		b.MustExplain(t)
		if b.Effects != len(effects)+10 || b.DeadLetters != len(deadLetters) {
			t.Errorf("%d effects and %d dead letters, want %d and %d", b.Effects, b.DeadLetters, len(effects)+10, len(deadLetters))
		}
	})
}
