package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func TestPublisher_LostAckIsUnknownAndItsRepeatIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 3 * time.Second})
	quiet := jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true}
	b.stream(t, quiet)
	messages := orders(3)
	for i := range messages {
		messages[i].Topic = "quiet"
	}
	failures := failuresOf(t, b.pub.Publish(t.Context(), messages...))
	for _, f := range failures {
		if !f.Unknown || !errors.Is(f.Err, jetstream.ErrAsyncPublishTimeout) {
			t.Errorf("failure %+v, want unknown because of a timeout", f)
		}
	}
	if len(failures) != 3 {
		t.Errorf("%d failures, want 3", len(failures))
	}
	quiet.NoAck = false
	b.stream(t, quiet)
	if err := b.pub.Publish(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	wantOnce(t, b.stored(t, "quiet"), 3)
	if n := b.pub.Duplicates(); n != 3 { // that no relay repeats
		t.Errorf("%d duplicates, want 3", n)
	}
}

// Two relays share an outbox, each with a Publisher of its own: what one of them has sent in vain, the other sends again.
func TestPublisher_RepeatForAnotherRelayIsNoSurprise(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 3 * time.Second})
	quiet := jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true}
	b.stream(t, quiet)
	m := producer.Message{ID: "o0", Topic: "quiet"}
	other, err := natsjs.NewPublisher(b.js, natsjs.PublisherConfig{AckTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if failures := failuresOf(t, other.Publish(t.Context(), m)); !failures[0].Unknown {
		t.Errorf("failure %+v, want unknown", failures[0])
	}
	quiet.NoAck = false
	b.stream(t, quiet)
	m.Header = producer.Header{producer.HeaderResend: "1"}
	if err := b.pub.Publish(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	wantOnce(t, b.stored(t, "quiet"), 1)
	if b.pub.Duplicates() != 0 || b.log.String() != "" {
		t.Errorf("%d duplicates were reported:\n%s", b.pub.Duplicates(), b.log.String())
	}
}

func TestPublisher_FullPipeIsNobodysRefusal(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 200 * time.Millisecond, MaxPending: 2})
	b.stream(t, jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true})
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	messages := orders(50)
	for i := range messages {
		messages[i].Topic = "quiet"
	}
	failures := failuresOf(t, b.pub.Publish(ctx, messages...))
	for _, f := range failures {
		if !f.Unknown {
			t.Errorf("message %s was reported as refused: %v", f.ID, f.Err)
		}
	}
	last := failures[len(failures)-1]
	if len(failures) != 50 || !last.Unknown || !errors.Is(last.Err, jetstream.ErrTooManyStalledMsgs) || ctx.Err() != nil {
		t.Errorf("%d failures, the last one %+v; context: %v", len(failures), last, ctx.Err())
	}
}

func TestPublisher_EndedContext(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: time.Minute})
	b.stream(t, jetstream.StreamConfig{Name: "quiet", Subjects: []string{"quiet"}, NoAck: true})
	why := errors.New("shutting down")

	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.pub.Publish(ctx, producer.Message{ID: "o0", Topic: "quiet"}) }()
	for len(b.stored(t, "quiet")) == 0 { // a round trip to the server each time
	}
	cancel(why)
	if f := failuresOf(t, <-ended)[0]; !f.Unknown || !errors.Is(f.Err, why) {
		t.Errorf("while waiting for the ack: %+v, want unknown because of the context", f)
	}
	if f := failuresOf(t, b.pub.Publish(ctx, orders(1)...))[0]; !f.Unknown || !errors.Is(f.Err, why) {
		t.Errorf("before it was sent: %+v, want nobody to have refused it", f)
	}
	if n := len(b.stored(t, "orders")); n != 0 {
		t.Errorf("%d messages were sent", n)
	}
}

func TestPublisher_ServerDiesMidway_RepeatLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{AckTimeout: 2 * time.Second, MaxPending: 50})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	// A relay: batch after batch, each repeated until all of it is acknowledged. It ends after the batch in which the
	// server died under messages in flight.
	var sent, unknown int
	ended := make(chan error, 1)
	go func() {
		for unknown == 0 {
			left := orders(sent + 200)[sent:]
			sent += len(left)
			for len(left) > 0 {
				err := b.pub.Publish(ctx, left...)
				var failed *producer.PublishError
				if err != nil && !errors.As(err, &failed) || ctx.Err() != nil {
					ended <- fmt.Errorf("%d messages are left: %w", len(left), err)
					return
				}
				var again []producer.Message
				if err != nil {
					for _, f := range failed.Failures {
						again = append(again, left[f.Index])
						if f.Unknown {
							unknown++
						}
					}
				}
				left = again
			}
		}
		ended <- nil
	}()
	stream, err := b.js.Stream(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	var seq uint64
	for running := true; running; {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			// It has published something since the last restart. The request gets lost if the connection does.
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			info, err := stream.Info(short)
			cancel()
			if err == nil && info.State.LastSeq > seq {
				seq = info.State.LastSeq
				b.server.Shutdown()
				b.server.Restart()
			}
		}
	}
	t.Logf("%d messages, %d of them unknown", sent, unknown)
	b.js = b.server.JetStream() // the old connection may still find out that the server was away
	wantOnce(t, b.stored(t, "orders"), sent)
}

func TestPublisher_ClosedConnectionIsNobodysRefusal(t *testing.T) {
	t.Parallel()
	b := newBench(t, natsjs.PublisherConfig{})
	b.js.Conn().Close()
	if f := failuresOf(t, b.pub.Publish(t.Context(), orders(1)...))[0]; !f.Unknown || !errors.Is(f.Err, nats.ErrConnectionClosed) {
		t.Errorf("got %+v", f)
	}
}

func TestPublisher_LeavesNoGoroutineBehind(t *testing.T) { // not parallel: it counts goroutines
	b := newBench(t, natsjs.PublisherConfig{})
	before := goleak.IgnoreCurrent()
	nc, err := nats.Connect(b.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish(t.Context(), append(orders(10), producer.Message{ID: "x", Topic: "nowhere"})...); err == nil {
		t.Error("no error")
	}
	nc.Close()
	goleak.VerifyNone(t, before)
}
