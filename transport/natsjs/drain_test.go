package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func TestWorker_FinishedHandlersAreAckedOnShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.MaxInFlight = 100
	r.publish(150, oneKey)
	stopping := make(chan struct{})
	stop := r.start(r.worker(func(ctx context.Context, _ jetstream.Msg) error {
		<-stopping
		lasts(300 * time.Millisecond) // long after the end of Run's context
		return ctx.Err()
	}))
	until(t, "100 messages in flight", func() bool { _, runs := r.done(); return runs == 100 })
	close(stopping)
	r.stops(stop)
	finished, runs := r.done()
	if finished != 100 || runs != 100 {
		t.Errorf("%d of %d runs finished, want 100 of 100", finished, runs)
	}
	until(t, "100 acks", func() bool { i := r.info(); return i.AckFloor.Stream == 100 && i.NumAckPending == 0 })

	stop = r.start(r.worker(succeed))
	r.finishes(150)
	r.stops(stop)
	r.acked(150)
	if info := r.info(); info.Delivered.Consumer != 150 {
		t.Errorf("%d deliveries of 150 messages", info.Delivered.Consumer)
	}
}

func TestWorker_WhatIsNotStartedIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.Order = natsjs.BySubject
	r.publish(20, oneKey)
	stopping := make(chan struct{})
	stop := r.start(r.worker(func(context.Context, jetstream.Msg) error { <-stopping; return nil }))
	until(t, "20 messages in flight", func() bool { return r.info().NumAckPending == 20 })
	time.AfterFunc(50*time.Millisecond, func() { close(stopping) })
	ended := time.Now()
	r.stops(stop)
	if took := time.Since(ended); took > longWait {
		t.Errorf("the drain took %v", took)
	}
	finished, _ := r.done()

	stop = r.start(r.worker(succeed))
	r.finishes(20)
	r.stops(stop)
	r.acked(20)
	// Each one that was given back came to the second worker, not to requests of the first one again.
	if got, want := int(r.info().Delivered.Consumer), 20+20-finished; got != want {
		t.Errorf("%d deliveries, want %d", got, want)
	}
	if _, runs := r.done(); runs != 20 {
		t.Errorf("%d runs", runs)
	}
	r.inOrder(20)
}

// inOrder checks that messages were finished in their order.
func (r *rig) inOrder(n int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, id := range r.order {
		if id != fmt.Sprintf("o%d", i) {
			r.t.Fatalf("number %d to finish was %s", i, id)
		}
	}
	if len(r.order) != n {
		r.t.Errorf("%d finished, want %d", len(r.order), n)
	}
}

func TestWorker_RestartKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]natsjs.Config{
		"order keys": {Order: natsjs.BySubject}, "one in flight": {MaxInFlight: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.config = config
			r.publish(20, oneKey)
			givenBack, err := r.js.Conn().SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.orders.billing")
			if err != nil {
				t.Fatal(err)
			}
			stop := r.start(r.worker(func(_ context.Context, msg jetstream.Msg) error {
				if msg.Headers().Get(producer.HeaderID) == "o5" {
					return errors.New("not yet")
				}
				return nil
			}))
			until(t, "a failure", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.started["o5"] > 0 })
			r.stops(stop)
			// The server has read the nak of o5, and has still to carry it out: until then it delivers o6.
			if _, err := givenBack.NextMsg(time.Minute); err != nil {
				t.Fatalf("no message was given back: %v", err)
			}
			stop = r.start(r.worker(succeed))
			r.finishes(20)
			r.stops(stop)
			r.acked(20)
			r.inOrder(20)
		})
	}
}

func TestWorker_LastDeliveryIsNotGivenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxDeliver: 2})
	r.policy.MaxAttempts = 1
	r.config.Order = natsjs.BySubject
	r.publish(2, oneKey)
	batch, err := r.cons.Fetch(2)
	if err != nil {
		t.Fatal(err)
	}
	for msg := range batch.Messages() {
		if err := msg.Nak(); err != nil {
			t.Fatal(err)
		}
	}
	stopping := make(chan struct{})
	w := r.worker(func(context.Context, jetstream.Msg) error { <-stopping; lasts(100 * time.Millisecond); return nil })
	stop := r.start(w)
	until(t, "the first one", func() bool { _, runs := r.done(); return runs == 1 })
	until(t, "the second one", func() bool { return r.info().Delivered.Consumer == 4 })
	time.AfterFunc(50*time.Millisecond, func() { close(stopping) })
	r.stops(stop)
	r.acked(2)
	if finished, _ := r.done(); finished != 2 || w.MaxDeliveries() != 0 {
		t.Errorf("%d finished, %d lost", finished, w.MaxDeliveries())
	}
}

func TestSource_RetriesAreGivenBackOnShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(3, oneKey)
	var calls atomic.Int32
	late, stopping := make(chan struct{}), make(chan struct{})
	stop := r.start(deciding{r.source(), func(_ context.Context, d consumer.Delivery) consumer.Decision {
		calls.Add(1)
		switch idOf(d) {
		case "o0": // kept
			return consumer.Decision{Action: consumer.RetryLater, Delay: time.Hour, Keep: true}
		case "o1": // decided during the drain
			<-stopping
			<-late
			return consumer.Decision{Action: consumer.RetryLater, Delay: time.Hour}
		}
		return consumer.Decision{Action: consumer.RetryLater, Delay: time.Millisecond, Keep: true}
	}})
	until(t, "three calls", func() bool { return calls.Load() >= 3 })
	close(stopping)
	time.AfterFunc(100*time.Millisecond, func() { close(late) })
	r.stops(stop)
	if n := r.info().NumAckPending; n != 2 && n != 3 { // a nak with a delay is pending
		t.Errorf("%d pending", n)
	}
	// The two of an hour are delayed, not given back at once.
	stop = r.start(deciding{r.source(), func(_ context.Context, d consumer.Delivery) consumer.Decision {
		r.count(r.finished, idOf(d))
		return consumer.Decision{Action: consumer.Ack}
	}})
	r.finishes(1)
	lasts(200 * time.Millisecond)
	r.stops(stop)
	if finished, _ := r.done(); finished != 1 || r.finished["o2"] != 1 {
		t.Errorf("delivered again: %v, want o2", r.finished)
	}
}

func TestWorker_GraceEndsHandlers(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.Grace = 200 * time.Millisecond
	r.publish(3, oneKey)
	stop := r.start(r.worker(func(ctx context.Context, _ jetstream.Msg) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	until(t, "three runs", func() bool { _, runs := r.done(); return runs == 3 })
	if err := stop(); !errors.Is(err, natsjs.ErrCutShort) || !strings.Contains(err.Error(), "3 handlers") {
		t.Errorf("Run: %v, want three handlers cut short", err)
	}
	// No attempt was used up.
	r.policy.MaxAttempts = 1
	stop = r.start(r.worker(succeed))
	r.finishes(3)
	r.stops(stop)
	r.acked(3)
}

func TestWorker_LeftToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{AckWait: 3 * time.Second})
	r.publish(1, oneKey)
	var deliveries atomic.Int32
	began := time.Now()
	stop := r.start(deciding{r.source(), func(_ context.Context, d consumer.Delivery) consumer.Decision {
		if deliveries.Add(1) == 1 {
			return consumer.Decision{Action: consumer.Leave, Err: oncemill.ErrClaimLost}
		}
		if d.Count != 2 {
			t.Errorf("delivery %d", d.Count)
		}
		return consumer.Decision{Action: consumer.Ack}
	}})
	r.acked(1)
	if took := time.Since(began); took < 2800*time.Millisecond || deliveries.Load() != 2 {
		t.Errorf("%d deliveries, the last one acked after %v, want two, the second after AckWait", deliveries.Load(), took)
	}
	r.stops(stop)
}

// The drain begins while the last message that a request asked for is on its way to the loop.
func TestRun_DrainWaitsForWhatIsBeingHandedOn(t *testing.T) {
	for name, pause := range map[string]time.Duration{"slow order": 300 * time.Millisecond, "quick": 0} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, jetstream.ConsumerConfig{MaxDeliver: 2})
			r.policy.MaxAttempts = 1
			ordering := make(chan struct{}, 10)
			r.config.MaxInFlight = 1
			r.config.Order = func(jetstream.Msg) string {
				ordering <- struct{}{}
				lasts(pause)
				return ""
			}
			r.publish(1, oneKey)
			batch, err := r.cons.Fetch(1)
			if err != nil {
				t.Fatal(err)
			}
			for msg := range batch.Messages() {
				if err := msg.Nak(); err != nil {
					t.Fatal(err)
				}
			}
			w := r.worker(func(context.Context, jetstream.Msg) error { return nil })
			stop := r.start(w)
			select {
			case <-ordering:
			case <-time.After(5 * time.Second):
				t.Fatal(stop())
			}
			r.stops(stop)
			if finished, _ := r.done(); finished != 1 {
				t.Errorf("%d finished; log: %s", finished, r.log.String())
			}
		})
	}
}

// The header is the handler's, which goes on when the grace is over, as one in a Router does.
func TestRun_AHeaderIsItsHandlersWhenTheGraceIsOver(t *testing.T) {
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.Grace = 100 * time.Millisecond
	r.publish(1, oneKey)
	begun := make(chan struct{})
	over, gone := make(chan struct{}), make(chan struct{})
	stop := r.start(deciding{r.source(), func(ctx context.Context, d consumer.Delivery) consumer.Decision {
		close(begun)
		go func() { // a Router's handler that ignores its context
			defer close(gone)
			for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
				d.Header["note"] = "x"
				select {
				case <-over:
					tick.Stop()
					return
				default:
				}
			}
		}()
		<-ctx.Done() // as oncewatermill's subscription does
		return consumer.Decision{Action: consumer.Leave, Err: context.Cause(ctx)}
	}})
	<-begun
	if err := stop(); !errors.Is(err, natsjs.ErrCutShort) {
		t.Errorf("stopped with %v, want ErrCutShort", err)
	}
	close(over)
	<-gone
}
