package natsjs

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
)

// brokerID is the Nats-Msg-Id of a message.
func brokerID(t *testing.T, m producer.Message) string {
	t.Helper()
	var e encoder
	id, err := e.encode(m)
	if err != nil || e.message.Header.Get("Nats-Msg-Id") != id {
		t.Fatalf("%+v: ID %q, header %v, error %v", m, id, e.message.Header, err)
	}
	return id
}

// A relay of an older version may have published a message that this one repeats: these values must never change.
func TestMsgID_NeverChanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		m    producer.Message
		want string
	}{
		{producer.Message{ID: "o1", Topic: "orders"}, "VJW9bkXyZSicKHYd4GPfn3aRxwickYIWgjC4U2VTdNs"},
		{producer.Message{ID: "o1", Topic: "orders", Header: producer.Header{"oncemill-purpose": "replay", "oncemill-generation": "2"}}, "a2JnLPowAtDzhETHH49slRbvCA42Qjs21W-9sWg5UyQ"},
	} {
		if got := brokerID(t, tc.m); got != tc.want {
			t.Errorf("%+v: got %s, want %s", tc.m, got, tc.want)
		}
	}
}

func TestMsgID_DependsOnIDSubjectPurposeAndGenerationOnly(t *testing.T) {
	t.Parallel()
	first := producer.Message{ID: "o1", Topic: "orders"}
	same := producer.Message{ID: "o1", Topic: "orders", Key: "k", Payload: []byte("x"), Header: producer.Header{"traceparent": "y"}}
	if brokerID(t, first) != brokerID(t, same) {
		t.Error("a repetition with another key, payload or trace has another Nats-Msg-Id")
	}
	seen := map[string]producer.Message{}
	for _, m := range []producer.Message{
		first,
		{ID: "o1o", Topic: "rders"},
		{ID: "o1", Topic: "orders.dead"},
		{ID: "o1", Topic: "orders", Header: producer.Header{"Oncemill-Purpose": "retry"}},
		{ID: "o1", Topic: "orders", Header: producer.Header{"oncemill-purpose": "replay"}},
		{ID: "o1", Topic: "orders", Header: producer.Header{"oncemill-purpose": "replay", "oncemill-generation": "1"}},
		{ID: "o1", Topic: "orders", Header: producer.Header{"oncemill-purpose": "replay", "oncemill-generation": "2"}},
	} {
		id := brokerID(t, m)
		if other, ok := seen[id]; ok {
			t.Errorf("%+v and %+v have one Nats-Msg-Id", other, m)
		}
		seen[id] = m
	}
}

func TestClassify_OnlyProofIsDefinite(t *testing.T) {
	t.Parallel()
	api := func(class int, code jetstream.ErrorCode) error {
		return &jetstream.APIError{Code: class, ErrorCode: code}
	}
	for err, want := range map[error]bool{
		jetstream.ErrNoStreamResponse:        false,
		api(400, 10054):                      true,  // too big
		fmt.Errorf("x: %w", api(400, 10097)): true,  // headers too big
		api(400, 10109):                      true,  // sealed
		api(400, 10060):                      true,  // another stream was expected
		api(400, 10071):                      true,  // another last sequence was expected
		api(400, 10002):                      false, // limits of the account
		api(429, 10167):                      false, // too many requests
		api(409, 10158):                      false, // a copy is being stored
		api(404, 10059):                      false, // stream not found
		api(400, 0):                          false, // no reason given
		api(400, 19999):                      false, // of a later server
		api(503, 10077):                      false, // not stored
		jetstream.ErrAsyncPublishTimeout:     false,
		jetstream.ErrInvalidJSAck:            false,
		nats.ErrDisconnected:                 false,
	} {
		if refused(err) != want {
			t.Errorf("refused(%v) is %v", err, !want)
		}
	}
	for _, c := range []struct {
		size  int
		limit int64
		err   error
		want  bool
	}{
		{2000, 1000, fmt.Errorf("x: %w", nats.ErrMaxPayload), true},
		{2000, 0, nats.ErrMaxPayload, false}, // the client does not know its server yet
		{500, 1000, nats.ErrMaxPayload, false},
		{500, 1000, nats.ErrHeadersNotSupported, false},
		{500, 1000, nats.ErrBadSubject, true},
		{500, 1000, errors.New("write: broken pipe"), false},
		{500, 1000, nats.ErrConnectionClosed, false},
	} {
		if got := unsendable(c.size, c.limit, c.err); got != c.want {
			t.Errorf("unsendable(%d, %d, %v) is %v", c.size, c.limit, c.err, got)
		}
	}
}
