package oncewatermill_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

func decorated(t testing.TB, b *broker) message.Publisher {
	t.Helper()
	pub, err := oncewatermill.StampDecorator(b)
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

func TestStampDecorator_StampsWhatIsNotStamped(t *testing.T) {
	t.Parallel()
	ctx, traceparent := withSpan(t, 1)
	for _, tc := range []struct{ name, uuid, id, want string }{
		{"UUID", "u1", "", "u1"},
		{"metadata", "", "o1", "o1"},
		{"both, equal", "o1", "o1", "o1"},
		{"both, different: the metadata wins", "u1", "o1", "o1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := &broker{}
			msg := message.NewMessageWithContext(ctx, tc.uuid, message.Payload("x"))
			msg.Metadata["color"] = "blue"
			msg.Metadata["oncemill-name"] = "receipt"
			if tc.id != "" {
				msg.Metadata["oncemill-id"] = tc.id
			}
			before := msg.Copy()
			if err := decorated(t, b).Publish("orders", msg); err != nil {
				t.Fatal(err)
			}
			sent := b.sent[0]
			want := message.Metadata{"color": "blue", "oncemill-id": tc.want, "traceparent": traceparent}
			if diff := cmp.Diff(want, sent.Metadata); diff != "" || sent.UUID != tc.want || string(sent.Payload) != "x" {
				t.Errorf("sent UUID %q, payload %q, metadata (-want +got):\n%s", sent.UUID, sent.Payload, diff)
			}
			if sent.Context() != ctx {
				t.Error("the message lost its context")
			}
			if !msg.Equals(before) {
				t.Errorf("the caller's message was changed: %v %v", msg.UUID, msg.Metadata)
			}
		})
	}
}

func TestStampDecorator_RepeatedPublishSendsTheSameID(t *testing.T) {
	t.Parallel()
	b := &broker{fail: map[string]error{"orders": errors.New("broker down")}}
	pub := decorated(t, b)
	msg := &message.Message{Payload: message.Payload("x")}
	if err := pub.Publish("orders", msg); err == nil {
		t.Fatal("no error")
	}
	id := msg.UUID
	b.fail = nil
	if err := pub.Publish("orders", msg); err != nil {
		t.Fatal(err)
	}
	if id == "" || msg.UUID != id || b.sent[0].UUID != id || b.sent[0].Metadata["oncemill-id"] != id {
		t.Errorf("first %q, then %q, sent %q with %v", id, msg.UUID, b.sent[0].UUID, b.sent[0].Metadata)
	}
}

func TestStampDecorator_RefusesTheWholeCall(t *testing.T) {
	t.Parallel()
	good := message.NewMessage("good", nil)
	copied := func(uuid, payload string) *message.Message {
		m := message.NewMessage(uuid, message.Payload(payload))
		m.Metadata["oncemill-id"] = "o1"
		return m
	}
	for _, tc := range []struct {
		name, topic string
		messages    []*message.Message
		field       string
	}{
		{"bad UUID", "orders", []*message.Message{good, message.NewMessage("a\nb", nil)}, "Message.ID"},
		{"oversized metadata", "orders", []*message.Message{good, {UUID: "u", Metadata: message.Metadata{"oncemill-id": long}}}, "Message.ID"},
		{"empty metadata", "orders", []*message.Message{{UUID: "u", Metadata: message.Metadata{"oncemill-id": ""}}}, "header oncemill-id"},
		{"nil", "orders", []*message.Message{good, nil}, "message 1"},
		{"no topic", "", []*message.Message{good}, "Message.Topic"},
		{"copied metadata", "orders", []*message.Message{copied("u1", "a"), copied("u2", "a")}, "header oncemill-id"},
		{"copied metadata, one UUID", "orders", []*message.Message{copied("u1", "a"), copied("u1", "b")}, "header oncemill-id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b, p := &broker{}, &published{}
			wantInvalid(t, decorated(t, b).Publish(tc.topic, tc.messages...), tc.field)
			wantInvalid(t, oncewatermill.NewPublisher(p).Publish(tc.topic, tc.messages...), tc.field)
			if len(b.sent)+len(p.messages) != 0 {
				t.Errorf("sent %d messages", len(b.sent)+len(p.messages))
			}
		})
	}
	if err := decorated(t, &broker{}).Publish("orders", good, good); err != nil {
		t.Errorf("the same message twice: %v", err)
	}
	_, err := oncewatermill.StampDecorator(nil)
	wantInvalid(t, err, "publisher")
}

func TestNewPublisher_PublishesStampedMessages(t *testing.T) {
	t.Parallel()
	ctx, traceparent := withSpan(t, 1)
	p := &published{err: context.DeadlineExceeded}
	pub := oncewatermill.NewPublisher(p)
	msg := message.NewMessageWithContext(ctx, "u1", message.Payload("x"))
	msg.Metadata["oncemill-key"] = "customer 7"
	if err := pub.Publish("orders", msg); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	want := []producer.Message{{
		ID: "u1", Topic: "orders", Key: "customer 7", Payload: []byte("x"),
		Header: producer.Header{"oncemill-id": "u1", "traceparent": traceparent},
	}}
	if diff := cmp.Diff(want, p.messages); diff != "" || p.ctx != ctx {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if err := errors.Join(pub.Publish("orders"), pub.Close()); err != nil {
		t.Error(err)
	}
}

func TestFromPublisher_KeepsOrderPerTopic(t *testing.T) {
	t.Parallel()
	b := &broker{}
	err := oncewatermill.FromPublisher(b).Publish(t.Context(),
		producer.Message{ID: "1", Topic: "a", Key: "k"}, producer.Message{ID: "2", Topic: "b"},
		producer.Message{ID: "3", Topic: "a"}, producer.Message{ID: "4", Topic: "b"},
	)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{"a": {"1", "3"}, "b": {"2", "4"}}, b.by); diff != "" {
		t.Error(diff)
	}
	if got := b.sent[0].Metadata; got["oncemill-key"] != "k" || got["oncemill-id"] != "1" {
		t.Errorf("metadata %v", got)
	}
}

func TestFromPublisher_FailureIsUnknownForItsTopicOnly(t *testing.T) {
	t.Parallel()
	down := errors.New("broker down")
	b := &broker{fail: map[string]error{"a": down}}
	err := oncewatermill.FromPublisher(b).Publish(t.Context(),
		producer.Message{ID: "1", Topic: "a"}, producer.Message{ID: "2", Topic: "b"}, producer.Message{ID: "3", Topic: "a"},
		producer.Message{Topic: "b"}, producer.Message{ID: "5", Topic: "b", NotBefore: time.Now().Add(time.Hour)},
	)
	var failed *producer.PublishError
	if !errors.As(err, &failed) || !errors.Is(err, down) {
		t.Fatalf("error %v (%T)", err, err)
	}
	type failure struct {
		Index   int
		ID      string
		Unknown bool
	}
	var got []failure
	for _, f := range failed.Failures {
		got = append(got, failure{f.Index, f.ID, f.Unknown})
	}
	if diff := cmp.Diff([]failure{{0, "1", true}, {2, "3", true}, {3, "", false}, {4, "5", false}}, got); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	wantInvalid(t, failed.Failures[2].Err, "Message.ID")
	wantInvalid(t, failed.Failures[3].Err, "Message.NotBefore")
	if diff := cmp.Diff(map[string][]string{"b": {"2"}}, b.by); diff != "" {
		t.Error(diff)
	}
}

func TestFromPublisher_EndedContextSendsNothingAndIsNobodysRefusal(t *testing.T) {
	t.Parallel()
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	b := &broker{}
	err := oncewatermill.FromPublisher(b).Publish(ctx, producer.Message{ID: "1", Topic: "a"}, producer.Message{Topic: "a"})
	var failed *producer.PublishError
	if !errors.As(err, &failed) || !errors.Is(err, why) || len(failed.Failures) != 2 || len(b.sent) != 0 {
		t.Fatalf("error %v, sent %d", err, len(b.sent))
	}
	if !failed.Failures[0].Unknown || failed.Failures[1].Unknown {
		t.Errorf("failures %+v, want the first one unknown, the second one refused", failed.Failures)
	}
}

func TestMessage_RoundTrip(t *testing.T) {
	t.Parallel()
	m := producer.Message{
		ID: "o1", Topic: "orders", Key: "k", Payload: []byte("x"), Header: producer.Header{"oncemill-id": "o1", "color": "blue"},
	}
	msg := oncewatermill.ToMessage(t.Context(), m)
	if diff := cmp.Diff(m, oncewatermill.FromMessage("orders", msg)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	msg.Metadata["color"] = "red"
	if m.Header["color"] != "blue" {
		t.Error("the header is shared")
	}
}
