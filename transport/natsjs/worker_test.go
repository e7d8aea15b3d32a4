package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func succeed(context.Context, jetstream.Msg) error { return nil }

func TestWorker_EachMessageRunsOnceAndIsAcked(t *testing.T) {
	t.Parallel()
	for _, room := range []int{0, 1, 7} {
		t.Run(fmt.Sprint("in flight ", room), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.config.MaxInFlight = room
			r.publish(300, oneKey)
			stop := r.start(r.worker(succeed))
			r.finishes(300)
			r.stops(stop)
			r.acked(300)
			if _, runs := r.done(); runs != 300 {
				t.Errorf("%d runs", runs)
			}
			for _, says := range []string{"consuming begins", "consuming has ended"} {
				line := regexp.MustCompile("level=INFO .*" + says + ".* stream=.* consumer=.* handler=charge group=billing")
				if n := len(line.FindAllString(r.log.String(), -1)); n != 1 {
					t.Errorf("%d lines %q:\n%s", n, says, r.log.String())
				}
			}
		})
	}
}

func TestWorker_SlowHandlersAreNotOvertakenByAckWait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		room  int
		order func(jetstream.Msg) string
	}{{1, nil}, {20, nil}, {20, natsjs.BySubject}} {
		t.Run(fmt.Sprintf("%d in flight, ordered %v", c.room, c.order != nil), func(t *testing.T) {
			t.Parallel()
			// half of it is the margin of a machine that is busy
			r := newRig(t, jetstream.ConsumerConfig{AckWait: 10 * time.Second})
			r.config.MaxInFlight, r.config.Order = c.room, c.order
			r.publish(20, oneKey)
			stop := r.start(r.worker(func(context.Context, jetstream.Msg) error {
				lasts(600 * time.Millisecond)
				return nil
			}))
			r.finishes(20)
			r.stops(stop)
			r.acked(20)
			if info := r.info(); info.Delivered.Consumer != 20 {
				t.Errorf("%d deliveries of 20 messages", info.Delivered.Consumer)
			}
			if _, runs := r.done(); runs != 20 {
				t.Errorf("%d runs", runs)
			}
		})
	}
}

func TestWorker_SecondRunIsRefusedWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	w := r.worker(succeed)
	r.publish(1, oneKey)
	stop := r.start(w)
	r.finishes(1)
	if err := w.Run(t.Context()); !errors.Is(err, natsjs.ErrRunning) {
		t.Errorf("second Run: %v", err)
	}
	r.stops(stop)
	stop = r.start(w)
	r.publish(1, oneKey) // a duplicate
	until(t, "the duplicate's ack", func() bool { return r.info().AckFloor.Stream == 2 })
	r.stops(stop)
	if _, runs := r.done(); runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

// A service that has just been started can be stopped as well as any other.
func TestRun_IsCleanIfItIsStoppedBeforeAnythingIsBegun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.worker(succeed).Run(ctx); err != nil {
		t.Errorf("the worker ended with %v", err)
	}
	source, err := natsjs.NewSource(r.processor(), r.js, natsjs.SourceConfig{
		Consumer: func(ctx context.Context, _ string) (jetstream.Consumer, error) {
			return r.js.Consumer(ctx, "orders", "billing")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = source.Run(ctx, "orders", func(_ context.Context, _ consumer.Delivery, done func(consumer.Decision)) {
		t.Error("a message was handed out")
		done(consumer.Decision{})
	})
	if err != nil {
		t.Errorf("the source ended with %v", err)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := r.worker(succeed).Run(late); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the worker that had no time ended with %v, want that", err)
	}
}
