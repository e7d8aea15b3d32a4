package stocknats_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
)

// These tests show what the adapters do by themselves. Where one fails with a new version of them, docs/brokers.md has a
// line too many.

// dies is set in a process that a test expects to die.
const dies = "STOCKNATS_TEST_DIES"

func TestBareJetStream_HeaderWithSeveralValuesEndsTheProcess(t *testing.T) {
	if os.Getenv(dies) != "" {
		r := newRig(t, setup{adapter: "jetstream", bare: true})
		r.receive("x", nats.Header{"color": {"red", "blue"}})
		return
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), dies+"=1", "TMPDIR="+t.TempDir()) // it cleans up nothing
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "nil pointer dereference") {
		t.Errorf("error %v, want a nil pointer dereference:\n%.600s", err, out)
	}
}

func TestBareNATS_UndecodableMessageIsAcked(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "nats", bare: true})
	s := r.serve()
	r.send("x", nats.Header{"color": {"red", "blue"}})
	r.settled()
	s.Close()
	if r.deliveries() != 0 || r.info().AckFloor.Stream != 1 {
		t.Errorf("%d deliveries, ack floor %d; the message should be lost", r.deliveries(), r.info().AckFloor.Stream)
	}
}

func TestBareNATS_MessageOfASlowHandlerIsAckedBeforeItsHandlerFails(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "nats", bare: true, patience: 100 * time.Millisecond, handle: func(msg *message.Message, _ int) error {
		<-msg.Context().Done()
		return errDeclined
	}})
	r.serve()
	r.publish("o1")
	until(t, "the run", func() bool { return r.ran("o1") == 1 })
	r.settled()
	if n := r.ran("o1"); n != 1 {
		t.Errorf("ran %d times; the message should be lost after the first", n)
	}
}

func TestBare_NackComesBackAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, bare: true, handle: func(_ *message.Message, n int) error {
			if n == 1 {
				return oncemill.RetryAfter(2*time.Second, errDeclined)
			}
			return nil
		}})
		r.serve()
		r.publish("o1")
		r.settled()
		if n := len(r.times("o1")); n < 3 { // its record makes it wait, and each nack uses up a delivery
			t.Errorf("delivered %d times", n)
		}
	})
}

func TestBareJetStream_FinishedHandlersAreNotAckedOnShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "jetstream", bare: true})
	sub := r.subscriber()
	defer sub.Close()
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := sub.Subscribe(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	r.publish("o1")
	msg := <-messages
	cancel()
	for range messages { // ends with the subscription
	}
	within(t, "the message's context", msg.Context().Done()) // so the handler is cancelled, too
	msg.Ack()
	if info := r.info(); info.NumAckPending != 1 {
		t.Errorf("%d acks pending, want that of the handler that has finished", info.NumAckPending)
	}
}

func TestBareNATS_DurableConsumerIsDeletedByItsSubscriber(t *testing.T) {
	t.Parallel()
	server, js := newStream(t)
	sub, err := wmnats.NewSubscriberWithNatsConn(server.Connect(), wmnats.SubscriberSubscriptionConfig{
		QueueGroupPrefix: "billing", JetStream: wmnats.JetStreamConfig{DurablePrefix: "billing"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	consumers := func() int {
		s, err := js.Stream(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Consumers
	}
	if n := consumers(); n != 1 {
		t.Fatalf("%d consumers", n)
	}
	sub.Close()
	if n := consumers(); n != 0 {
		t.Errorf("%d consumers, want none: the acks are forgotten", n)
	}
}

// With natsjs.Publisher each is stored: TestPublisher_DeadLetterRetryAndReplayAreNotSwallowed.
func TestBareNATS_TrackMsgIDSwallowsOtherTopicsAndReplays(t *testing.T) {
	t.Parallel()
	server := testserver.NATS(t)
	js := server.JetStream()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "shop", Subjects: []string{"shop.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, track := range []bool{true, false} {
		pub, err := wmnats.NewPublisher(wmnats.PublisherConfig{
			URL: server.URL(), Marshaler: &wmnats.NATSMarshaler{}, JetStream: wmnats.JetStreamConfig{TrackMsgID: track},
		}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		err = producer.FromWatermill(pub).Publish(t.Context(),
			producer.Message{ID: "o1", Topic: "shop.orders"},
			producer.Message{ID: "o1", Topic: "shop.emails"},
			producer.Message{ID: "o1", Topic: "shop.orders", Header: producer.Header{producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: "1"}},
		)
		if err := errors.Join(err, pub.Close()); err != nil {
			t.Fatal(err)
		}
		info, err := stream.Info(t.Context())
		if want := map[bool]uint64{true: 1, false: 1 + 3}[track]; err != nil || info.State.Msgs != want {
			t.Errorf("with TrackMsgID %v: %d messages stored, want %d; %v", track, info.State.Msgs, want, err)
		}
	}
}
