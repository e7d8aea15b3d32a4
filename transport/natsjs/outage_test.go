package natsjs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestWorker_DeletedConsumerEndsTheRun(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(*rig) error{
		"consumer": func(r *rig) error { return r.js.DeleteConsumer(r.t.Context(), "orders", "billing") },
		"stream":   func(r *rig) error { return r.js.DeleteStream(r.t.Context(), "orders") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.publish(1, oneLane)
			ended := make(chan error, 1)
			w := r.worker(succeed)
			go func() { ended <- w.Run(context.Background()) }()
			r.finishes(1)
			if err := remove(r); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) || !strings.Contains(err.Error(), `consumer "billing" of stream "orders" was deleted`) {
					t.Errorf("Run: %v", err)
				}
			case <-time.After(patience):
				t.Error("Run did not end")
			}
			if n := strings.Count(r.log.String(), "cannot be fetched"); n != 1 {
				t.Errorf("the trouble was logged %d times:\n%s", n, r.log.String())
			}
		})
	}
}

func TestWorker_ClosedConnectionEndsTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneLane)
	ended := make(chan error, 1)
	w := r.worker(succeed)
	go func() { ended <- w.Run(context.Background()) }()
	r.finishes(1)
	r.js.Conn().Close()
	select {
	case err := <-ended:
		if !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		t.Error("Run did not end")
	}
}

func TestWorker_SurvivesRestartsOfTheServer(t *testing.T) {
	t.Parallel()
	n := full(3000, 300)
	r := newRig(t, jetstream.ConsumerConfig{AckWait: 2 * time.Second})
	r.config.Window = 20
	r.publish(n, oneLane)
	stop := r.start(r.worker(func(context.Context, jetstream.Msg) error { lasts(5 * time.Millisecond); return nil }))
	for i := range full(5, 2) {
		r.finishes((i + 1) * n / 6)
		r.server.Shutdown()
		lasts(200 * time.Millisecond)
		r.server.Restart()
	}
	r.finishes(n)
	until(t, "all acks", func() bool {
		info, err := r.cons.Info(context.Background())
		return err == nil && info.AckFloor.Stream == uint64(n)
	})
	r.stops(stop)
	if _, runs := r.done(); runs != n {
		t.Errorf("%d runs of %d messages", runs, n)
	}
	if n := strings.Count(r.log.String(), "cannot be fetched"); n > 2*full(5, 2) {
		t.Errorf("the trouble was logged %d times:\n%s", n, r.log.String())
	}
}

func TestWorker_RunningHandlersSurviveARestartOfTheServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.DoubleAck = true // a server that is starting loses acks
	r.publish(5, oneLane)
	release := make(chan struct{})
	stop := r.start(r.worker(func(ctx context.Context, _ jetstream.Msg) error {
		<-release
		return ctx.Err()
	}))
	until(t, "five runs", func() bool { _, runs := r.done(); return runs == 5 })
	r.server.Shutdown()
	r.server.Restart()
	close(release)
	r.finishes(5)
	r.stops(stop)
	r.acked(5)
	if info := r.info(); info.Delivered.Consumer != 5 {
		t.Errorf("%d deliveries of 5 messages", info.Delivered.Consumer)
	}
}
