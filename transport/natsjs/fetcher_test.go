package natsjs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// Header Status is also how the server says that a request is over.
func TestWorker_MessagesThatLookLikeStatusesAreMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	ids := []string{"o0", "o1", "o2", "o3"}
	for i, status := range []string{"404", "408", "503", "100"} {
		msg := nats.NewMsg("orders.all")
		msg.Header.Set(producer.HeaderID, ids[i])
		msg.Header.Set("Status", status)
		msg.Header.Set("Description", "No Messages")
		if _, err := r.js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	stop := r.start(r.worker(succeed))
	r.finishes(len(ids))
	r.acked(len(ids))
	r.stops(stop)
	if _, runs := r.done(); runs != len(ids) {
		t.Errorf("%d handler runs, want %d", runs, len(ids))
	}
}

func TestWorker_HandlersSeeTheMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	seen := make(chan jetstream.Msg, 1)
	stop := r.start(r.worker(func(_ context.Context, msg jetstream.Msg) error {
		seen <- msg
		return msg.InProgress()
	}))
	r.acked(1)
	r.stops(stop)
	msg := <-seen
	if msg.Subject() != "orders.all" || string(msg.Data()) != "x" || msg.Headers().Get(producer.HeaderID) != "o0" || msg.Reply() == "" {
		t.Errorf("subject %q, data %q, headers %v, reply %q", msg.Subject(), msg.Data(), msg.Headers(), msg.Reply())
	}
	meta, err := msg.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	want := jetstream.MsgMetadata{
		Sequence: jetstream.SequencePair{Consumer: 1, Stream: 1}, NumDelivered: 1, Timestamp: meta.Timestamp, Stream: "orders", Consumer: "billing",
	}
	if *meta != want || time.Since(meta.Timestamp) > time.Minute {
		t.Errorf("metadata %+v, want %+v", *meta, want)
	}
	if err := msg.InProgress(); !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		t.Errorf("InProgress after the ack: %v, want %v", err, jetstream.ErrMsgAlreadyAckd)
	}
	if err := msg.Nak(); !errors.Is(err, natsjs.ErrWorkerSettles) {
		t.Errorf("Nak: %v, want %v", err, natsjs.ErrWorkerSettles)
	}
}
