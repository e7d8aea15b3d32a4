package natsjs

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestInbox_ReadsEveryAnswer(t *testing.T) {
	t.Parallel()
	var l ackWaiter
	for _, tc := range []struct {
		data string
		want ack
		err  error
	}{
		{`{"stream":"orders","seq":7}`, ack{"orders", 7, false, ""}, nil},
		{`{"stream":"orders","seq":18446744073709551615}`, ack{"orders", 1<<64 - 1, false, ""}, nil},
		{`{"stream":"orders","domain":"hub","seq":8}`, ack{"orders", 8, false, "hub"}, nil},
		{`{"stream":"orders","seq":7,"duplicate": true}`, ack{"orders", 7, true, ""}, nil},
		{` { "seq" : 9, "stream" : "orders" } `, ack{"orders", 9, false, ""}, nil},
		{`{"stream":"or\u0064ers","seq":9}`, ack{"orders", 9, false, ""}, nil},
		{`{"stream":"","seq":9}`, ack{}, jetstream.ErrInvalidJSAck},
		{`{"stream":"orders","seq":}`, ack{}, jetstream.ErrInvalidJSAck},
		{`{"stream":"orders","seq":-1}`, ack{}, jetstream.ErrInvalidJSAck},
		{`{"stream":"orders","seq":+1}`, ack{}, jetstream.ErrInvalidJSAck},
		{`{"stream":"orders","seq":01}`, ack{}, jetstream.ErrInvalidJSAck},
		{`{"stream":"orders","seq":1}}`, ack{}, jetstream.ErrInvalidJSAck},
		{`{}`, ack{}, jetstream.ErrInvalidJSAck},
		{``, ack{}, jetstream.ErrInvalidJSAck},
		{`+ACK`, ack{}, jetstream.ErrInvalidJSAck},
		{`{"error":{"code":400,"err_code":10054,"description":"too big"},"stream":"orders","seq":0}`, ack{}, &jetstream.APIError{ErrorCode: 10054}},
	} {
		got, err := l.read(&nats.Msg{Data: []byte(tc.data)})
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(ack{})); diff != "" || !errors.Is(err, tc.err) {
			t.Errorf("%s: error %v, want %v; (-want +got):\n%s", tc.data, err, tc.err, diff)
		}
	}
	nobody := &nats.Msg{Header: nats.Header{"Status": {"503"}}}
	if _, err := l.read(nobody); !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Errorf("nobody listens: %v", err)
	}
}
