package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

func TestWorker_BusyKeyDoesNotBurnMaxDeliver(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxDeliver: 5})
	r.policy.MaxAttempts, r.policy.Lease, r.maxWait = 4, time.Second, consumer.NoWait
	r.publish(1, oneKey)
	polls := &counting{Store: r.store}
	r.store = polls
	// Another owner has the key, and keeps it for a while.
	key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "o0"}
	other := dedupstore.Request{Key: key, Owner: "another-owner-of-it", Lease: time.Minute, Retention: time.Hour, MaxAttempts: 4}
	answer, err := dedupstore.ClaimOne(t.Context(), r.store, other)
	if err != nil {
		t.Fatal(err)
	}
	// Looks at the key come after what is left of the lease, so that it is kept short, but not so short that it is lost.
	polls.shortened.Store(true)
	stop := r.start(r.worker(succeed))
	until(t, "20 looks at the busy key", func() bool { return polls.claims.Load() > 20 })
	if info := r.info(); info.Delivered.Consumer != 1 {
		t.Errorf("%d deliveries after 20 looks, want 1", info.Delivered.Consumer)
	}
	if err := dedupstore.SettleOne(t.Context(), r.store, answer.Claim, dedupstore.Release{}); err != nil {
		t.Fatal(err)
	}
	r.finishes(1)
	r.stops(stop)
	r.acked(1)
	if info := r.info(); info.Delivered.Consumer != 1 {
		t.Errorf("%d deliveries, want 1", info.Delivered.Consumer)
	}
}

func TestWorker_BusyKeysLeaveRoomForOthersDespiteMaxDeliver(t *testing.T) {
	t.Parallel()
	const busy, orders, room = 8, 24, 8
	r := newRig(t, jetstream.ConsumerConfig{MaxDeliver: 6})
	r.policy.MaxAttempts, r.maxWait, r.config.MaxInFlight = 4, consumer.NoWait, room
	for i := range busy {
		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: fmt.Sprint("o", i)}
		other := dedupstore.Request{Key: key, Owner: "another-owner-of-it", Lease: time.Minute, Retention: time.Hour, MaxAttempts: 4}
		if _, err := dedupstore.ClaimOne(t.Context(), r.store, other); err != nil {
			t.Fatal(err)
		}
	}
	r.publish(orders, oneKey)
	w := r.worker(succeed)
	stop := r.start(w)
	r.finishes(orders - busy)
	r.stops(stop)
	if w.MaxDeliveries() != 0 {
		t.Errorf("%d messages were given up", w.MaxDeliveries())
	}
}

// counting counts claims, and may make busy ones wait for a short time only.
type counting struct {
	dedupstore.Store
	claims    atomic.Int32
	shortened atomic.Bool
}

func (c *counting) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, c.claimOne)
}

func (c *counting) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	c.claims.Add(1)
	a, err := dedupstore.ClaimOne(ctx, c.Store, r)
	if c.shortened.Load() && a.Status == dedupstore.Busy {
		a.Wait = min(a.Wait, 20*time.Millisecond)
	}
	return a, err
}

func TestWorker_FailuresUpToTheOutcomeTakeOneDelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxDeliver: 4})
	r.policy.MaxAttempts, r.maxWait = 3, consumer.NoWait
	r.publish(1, oneKey)
	w := r.worker(func(context.Context, jetstream.Msg) error { return errors.New("no") })
	stop := r.start(w)
	r.acked(1) // terminated
	r.stops(stop)
	if _, runs := r.done(); runs != 3 || r.info().Delivered.Consumer != 1 || w.MaxDeliveries() != 0 {
		t.Errorf("%d runs, %d deliveries, %d given up; want 3 runs of one delivery", runs, r.info().Delivered.Consumer, w.MaxDeliveries())
	}
}

func TestWorker_OrderKeysKeepTheirOrderThroughFailures(t *testing.T) {
	t.Parallel()
	n := full(400, 120)
	for name, config := range map[string]natsjs.Config{
		"by subject": {Order: natsjs.BySubject}, "small MaxInFlight": {MaxInFlight: 8, Order: natsjs.BySubjectToken(1)}, "one in flight": {MaxInFlight: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.config, r.policy.Backoff.Min = config, 10*time.Millisecond
			key := func(i int) string { return fmt.Sprint("key", i%5) }
			r.publish(n, key)
			stop := r.start(r.worker(func(_ context.Context, msg jetstream.Msg) error {
				id := msg.Headers().Get(producer.HeaderID)
				r.mu.Lock()
				defer r.mu.Unlock()
				if strings.HasSuffix(id, "3") && r.started[id] == 1 {
					return errors.New("the first time")
				}
				return nil
			}))
			r.finishes(n)
			r.stops(stop)
			r.acked(n)
			last := map[int]int{}
			for _, id := range r.order {
				var i int
				fmt.Sscanf(id, "o%d", &i)
				if before, ok := last[i%5]; ok && before > i {
					t.Fatalf("key %d: o%d after o%d", i%5, i, before)
				}
				last[i%5] = i
			}
			if deliveries := int(r.info().Delivered.Consumer); deliveries != n {
				t.Errorf("%d deliveries of %d messages: order cannot have come through naks", deliveries, n)
			}
		})
	}
}

func TestSource_RetryComesNotBeforeItsDelay(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("Keep ", keep), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{AckWait: 4 * time.Second})
			r.publish(1, oneKey)
			const delay = 5 * time.Second // longer than AckWait
			var mu sync.Mutex
			var calls []time.Time
			stop := r.start(deciding{r.source(), func(_ context.Context, d consumer.Delivery) consumer.Decision {
				mu.Lock()
				defer mu.Unlock()
				if calls = append(calls, time.Now()); len(calls) == 1 {
					return consumer.Decision{Action: consumer.RetryLater, Delay: delay, Keep: keep}
				}
				return consumer.Decision{Action: consumer.Ack}
			}})
			r.acked(1)
			r.stops(stop)
			if len(calls) != 2 || calls[1].Sub(calls[0]) < delay-50*time.Millisecond {
				t.Errorf("calls at %v", calls)
			}
			if want := map[bool]uint64{false: 2, true: 1}[keep]; r.info().Delivered.Consumer != want {
				t.Errorf("%d deliveries, want %d", r.info().Delivered.Consumer, want)
			}
		})
	}
}

func TestSource_RetriesLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxAckPending: 20})
	r.config.MaxInFlight = 16
	r.publish(100, oneKey)
	retried := map[string]bool{}
	for i := range 12 { // 10 naks, half of MaxAckPending, and two that are kept
		retried[fmt.Sprintf("o%d", i)] = true
	}
	var early atomic.Int32
	release := make(chan struct{})
	stop := r.start(deciding{r.source(), func(_ context.Context, d consumer.Delivery) consumer.Decision {
		if retried[idOf(d)] && d.Count == 1 {
			select {
			case <-release:
			default:
				early.Add(1)
				return consumer.Decision{Action: consumer.RetryLater, Delay: 2 * time.Second}
			}
		}
		r.count(r.finished, idOf(d))
		return consumer.Decision{Action: consumer.Ack}
	}})
	r.finishes(88)
	if early.Load() != 12 {
		t.Errorf("%d retries before all others were done, want 12", early.Load())
	}
	close(release)
	r.finishes(100)
	r.stops(stop)
	r.acked(100)
	if deliveries := r.info().Delivered.Consumer; deliveries != 110 {
		t.Errorf("%d deliveries, want 110: 10 naks", deliveries)
	}
}

func TestSource_KeepTakesHalfOfWhatMayBeInFlight(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.config.MaxInFlight = 8
	r.publish(20, oneKey)
	var calls atomic.Int32
	stop := r.start(deciding{r.source(), func(context.Context, consumer.Delivery) consumer.Decision {
		calls.Add(1)
		return consumer.Decision{Action: consumer.RetryLater, Delay: time.Hour, Keep: true}
	}})
	until(t, "20 calls", func() bool { return calls.Load() == 20 })
	r.stops(stop)
}

func TestWorker_MaxInFlightIsNeverExceeded(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]natsjs.Config{
		"order keys": {MaxInFlight: 10, Order: natsjs.BySubject}, "none": {MaxInFlight: 10}, "one": {MaxInFlight: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.config = config
			r.publish(200, func(i int) string { return fmt.Sprint(i % 3) })
			gate := make(chan struct{})
			stop := r.start(r.worker(func(context.Context, jetstream.Msg) error { <-gate; return nil }))
			for n := range 10 {
				until(t, "as many as may be", func() bool { return r.info().NumAckPending >= config.MaxInFlight })
				lasts(20 * time.Millisecond) // for one too many
				if pending := r.info().NumAckPending; pending > config.MaxInFlight {
					t.Errorf("%d in flight, want %d at most", pending, config.MaxInFlight)
				}
				gate <- struct{}{}
				r.finishes(n + 1)
			}
			close(gate)
			r.finishes(200)
			r.stops(stop)
		})
	}
}

func TestWorker_StoreThatDoesNotAnswerBurnsNoDelivery(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.maxWait = consumer.NoWait
	store := &failing{Store: r.store}
	store.down.Store(true)
	r.store = store
	r.publish(4, oneKey)
	stop := r.start(r.worker(succeed))
	until(t, "many claims", func() bool { return store.claims.Load() > 10 })
	store.down.Store(false)
	r.finishes(4)
	r.stops(stop)
	r.acked(4)
	if n := r.info().Delivered.Consumer; n != 4 {
		t.Errorf("%d deliveries of 4 messages", n)
	}
}

// failing is a store that may be down.
type failing struct {
	dedupstore.Store
	down   atomic.Bool
	claims atomic.Int32
}

func (f *failing) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, f.claimOne)
}

func (f *failing) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	f.claims.Add(1)
	if f.down.Load() {
		return dedupstore.Answer{}, errors.New("down")
	}
	return dedupstore.ClaimOne(ctx, f.Store, r)
}

func TestWorker_RejectedMessageIsTerminatedWithAReason(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	advisories := make(chan *nats.Msg, 10)
	sub, err := r.js.Conn().ChanSubscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.orders.billing", advisories)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	r.publish(1, oneKey)
	stop := r.start(r.worker(func(context.Context, jetstream.Msg) error {
		return oncemill.Permanent(errors.New("no such\r\naccount " + strings.Repeat("ä", 1000)))
	}))
	r.acked(1)
	r.stops(stop)
	select {
	case msg := <-advisories:
		if !strings.Contains(string(msg.Data), "no such  account") || len(msg.Data) > 1000 {
			t.Errorf("advisory %s", msg.Data)
		}
	case <-time.After(longWait):
		t.Error("no advisory")
	}
	if log := r.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "rejected") {
		t.Errorf("log:\n%s", log)
	}
}

// A handler that was written for a plain consumer acknowledges its messages. That must not charge anybody twice, and
// what it refuses must not be taken for done.
func TestWorker_WhatAHandlerSaysOfItsMessage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		say     func(context.Context, jetstream.Msg) error
		refuses bool
		runs    int
	}{
		"Ack":            {func(_ context.Context, m jetstream.Msg) error { return m.Ack() }, false, 1},
		"DoubleAck":      {func(ctx context.Context, m jetstream.Msg) error { return m.DoubleAck(ctx) }, false, 1},
		"InProgress":     {func(_ context.Context, m jetstream.Msg) error { return m.InProgress() }, false, 1},
		"Nak":            {func(_ context.Context, m jetstream.Msg) error { return m.Nak() }, true, 2},
		"NakWithDelay":   {func(_ context.Context, m jetstream.Msg) error { return m.NakWithDelay(time.Hour) }, true, 2},
		"Term":           {func(_ context.Context, m jetstream.Msg) error { return m.Term() }, true, 1},
		"TermWithReason": {func(_ context.Context, m jetstream.Msg) error { return m.TermWithReason("no") }, true, 1},
	} {
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, batch %t", name, batch), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("orders.dead")
				r.policy.Backoff = oncemill.Backoff{Min: time.Millisecond}
				r.publish(1, oneKey)
				runs := 0
				handle := func(ctx context.Context, msg jetstream.Msg) error {
					if runs++; runs > 1 {
						return nil
					}
					if err := c.say(ctx, msg); errors.Is(err, natsjs.ErrWorkerSettles) != c.refuses {
						t.Errorf("it answers %v", err)
					}
					return nil // whatever it answers
				}
				w := r.worker(handle)
				if batch {
					var err error
					w, err = natsjs.NewBatchWorker(r.processor(), r.js, r.cons,
						func(ctx context.Context, msgs []jetstream.Msg) []error {
							if err := handle(ctx, msgs[0]); err != nil {
								t.Error(err)
							}
							return nil
						}, natsjs.BatchConfig{Config: natsjs.Config{Handler: "charge"}})
					if err != nil {
						t.Fatal(err)
					}
				}
				stop := r.start(w)
				deadLetters := uint64(0)
				if c.refuses && c.runs == 1 {
					deadLetters = 1
				}
				until(t, "the outcome", func() bool {
					info := r.info()
					return info.NumAckPending == 0 && info.NumPending == 0 && info.AckFloor.Stream == 1+deadLetters
				})
				r.stops(stop)
				if runs != c.runs {
					t.Errorf("%d runs, want %d", runs, c.runs)
				}
			})
		}
	}
}
