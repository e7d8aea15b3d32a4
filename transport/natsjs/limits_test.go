package natsjs_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// bad puts messages off for an hour, all but those of the key "good".
func bad(good *atomic.Int32) func(context.Context, consumer.Delivery) consumer.Decision {
	return func(_ context.Context, d consumer.Delivery) consumer.Decision {
		if strings.HasSuffix(d.Topic, "good") {
			good.Add(1)
			return consumer.Decision{Action: consumer.Ack}
		}
		return consumer.Decision{Action: consumer.RetryLater, Delay: time.Hour, Err: errors.New("not now")}
	}
}

// However many messages wait for their retry, as long as MaxAckPending has room others come through.
func TestSource_WaitingMessagesLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxAckPending: 100})
	r.config.MaxInFlight = 10
	r.publish(70, func(int) string { return "bad" })
	var good atomic.Int32
	stop := r.start(deciding{r.source(), bad(&good)})
	until(t, "all that are bad to be put off", func() bool { return r.info().NumAckPending == 70 })
	r.publish(1, func(int) string { return "good" })
	until(t, "the good one", func() bool { return good.Load() == 1 })
	r.stops(stop)
}

// While the store is down a worker does not go through the whole backlog of a consumer without limits.
func TestSource_OutageOfTheStoreDoesNotTurnTheBacklogOver(t *testing.T) {
	t.Parallel()
	const backlog = 12_000
	r := newRig(t, jetstream.ConsumerConfig{MaxAckPending: -1})
	for i := range backlog {
		if _, err := r.js.PublishAsync("orders.a", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if i%500 == 499 { // more at once may stall
			<-r.js.PublishAsyncComplete()
		}
	}
	<-r.js.PublishAsyncComplete()
	var calls atomic.Int64
	stop := r.start(deciding{r.source(), func(context.Context, consumer.Delivery) consumer.Decision {
		calls.Add(1)
		return consumer.Decision{Action: consumer.RetryLater, Delay: 500 * time.Millisecond, Keep: true, Err: errors.New("store is down")}
	}})
	began := time.Now()
	until(t, "some rounds", func() bool { return time.Since(began) > 1500*time.Millisecond })
	if rounds := 1 + int(time.Since(began)/(500*time.Millisecond)); r.info().NumAckPending > rounds*(1000+256) {
		t.Errorf("%d of %d messages were delivered in %d rounds, want about 1,000 and a window in each", r.info().NumAckPending, backlog, rounds)
	}
	_ = stop()
}

// The server counts the delay of a nak from AckWait, and not from BackOff: a short one would come late.
func TestSource_DelaysAreKeptDespiteABackOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{BackOff: []time.Duration{time.Second, time.Hour}, MaxDeliver: -1})
	r.publish(1, oneKey)
	var calls atomic.Int32
	stop := r.start(deciding{r.source(), func(context.Context, consumer.Delivery) consumer.Decision {
		if calls.Add(1) == 3 {
			return consumer.Decision{Action: consumer.Ack}
		}
		return consumer.Decision{Action: consumer.RetryLater, Delay: 100 * time.Millisecond, Err: errors.New("not now")}
	}})
	until(t, "the third try", func() bool { return calls.Load() == 3 })
	r.stops(stop)
}

// A run's view of its consumer must stay true.
func TestWorker_ChangedConsumerEndsTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	w, ended := r.worker(succeed), make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	r.finishes(1)
	changed := r.info().Config
	changed.MaxRequestBatch = 10
	if _, err := r.js.UpdateConsumer(t.Context(), "orders", changed); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		var wrong *dedupstore.SetupError
		if !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Subject, "MaxRequestBatch"+" of consumer ") {
			t.Errorf("the run ended with %v, want a SetupError for MaxRequestBatch", err)
		}
	case <-time.After(longWait):
		t.Errorf("the run goes on; log:\n%s", r.log.String())
	}
}

func TestWorker_AsksForNoMoreAtATimeThanTheConsumerAllows(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxWaiting: 1})
	r.config.MaxInFlight = 16
	r.publish(500, func(int) string { return "a" })
	stop := r.start(r.worker(succeed))
	r.finishes(500)
	r.stops(stop)
	if strings.Contains(r.log.String(), "cannot be fetched") {
		t.Errorf("the log complains:\n%s", r.log.String())
	}
}

// A purge does not reach what is in a worker's window: it runs, also what waits its turn there.
func TestWorker_MessagesInFlightRunAlthoughThePurgedStreamHasThemNoMore(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.Order = natsjs.BySubject
	release := make(chan struct{})
	stop := r.start(r.worker(func(context.Context, jetstream.Msg) error { <-release; return nil }))
	r.publish(3, oneKey)
	until(t, "all deliveries", func() bool { return r.info().NumAckPending == 3 })
	until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
	stream, err := r.js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(release)
	r.finishes(3)
	r.stops(stop)
	if _, runs := r.done(); runs != 3 {
		t.Errorf("%d runs of three messages that were in flight", runs)
	}
}
