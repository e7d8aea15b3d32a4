package stocknats_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
)

var errDeclined = errors.New("declined")

func TestStock_EachRetryHasItsOwnDelay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, handle: func(msg *message.Message, n int) error {
			switch {
			case n > 1:
				return nil
			case string(msg.Payload) == "slow":
				return oncemill.RetryAfter(1200*time.Millisecond, errDeclined)
			case string(msg.Payload) == "fast":
				return oncemill.RetryAfter(400*time.Millisecond, errDeclined)
			}
			return nil
		}})
		r.serve()
		r.publish("slow", "fast", "fine")
		r.settled()
		wantDelay(t, r.times("slow"), 1200*time.Millisecond)
		wantDelay(t, r.times("fast"), 400*time.Millisecond)
		if !r.times("fine")[0].Before(r.times("slow")[1]) {
			t.Error("a message had to wait for the retry of one before it")
		}
	})
}

func TestStock_DelaysOfSubscriptionsSideBySideAreNotMixedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{adapter: "nats", subscribers: 4, handle: func(msg *message.Message, n int) error {
		if n > 1 {
			return nil
		}
		if msg.Payload[3]%2 == 0 {
			return oncemill.RetryAfter(time.Second, errDeclined)
		}
		return oncemill.RetryAfter(100*time.Millisecond, errDeclined)
	}})
	r.serve()
	names := numbered(40)
	r.publish(names...)
	r.settled()
	for _, name := range names {
		want := 100 * time.Millisecond
		if name[3]%2 == 0 {
			want = time.Second
		}
		wantDelay(t, r.times(name), want)
	}
}

func TestStock_RejectedMessageIsTerminated(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, handle: func(*message.Message, int) error {
			return oncemill.Permanent(errDeclined)
		}})
		r.serve()
		r.publish("o1")
		until(t, "the run", func() bool { return r.ran("o1") == 1 })
		r.settled()
		if n := len(r.times("o1")); n != 1 {
			t.Errorf("delivered %d times, want once", n)
		}
		if !r.log.has("terminated") {
			t.Error("nobody was told")
		}
	})
}

// Watermill's own PoisonQueue takes each error for poison, also one of an attempt that is to be repeated.
func TestStock_WhatHasToComeAgainDoesSoThoughAnOuterMiddlewareAcknowledgesIt(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		swallow := func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				outputs, _ := next(msg)
				return outputs, nil
			}
		}
		r := newRig(t, setup{adapter: adapter, outer: swallow, handle: func(msg *message.Message, n int) error {
			if n < 3 {
				return oncemill.RetryAfter(300*time.Millisecond, errDeclined)
			}
			return nil
		}})
		r.serve()
		r.publish("o1")
		until(t, "the third run", func() bool { return r.ran("o1") == 3 })
		r.settled()
		if n := len(r.times("o1")); n != 3 {
			t.Errorf("delivered %d times, want 3", n)
		}
		if !r.log.has("a middleware outside of the guard") {
			t.Error("nobody was told")
		}
	})
}

// A middleware that calls the guard again gets its ack, and the Router may nack after it, when outputs cannot be published.
func TestStock_NackStandsAgainstAnAckOfTheGuard(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		again := func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				_, err := next(msg)
				if err == nil {
					return nil, nil
				}
				for err != nil && msg.Context().Err() == nil {
					_, err = next(msg)
				}
				return nil, errDeclined
			}
		}
		r := newRig(t, setup{adapter: adapter, outer: again, handle: func(_ *message.Message, n int) error {
			if n == 1 {
				return oncemill.RetryAfter(100*time.Millisecond, errDeclined)
			}
			return nil
		}})
		r.serve()
		r.publish("o1")
		until(t, "a second delivery", func() bool { return len(r.times("o1")) == 2 })
		r.settled()
		if n := r.ran("o1"); n != 2 {
			t.Errorf("%d runs, want 2", n)
		}
	})
}

func TestStock_NackWithoutADecisionIsDelayedAndItsDelayGrows(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter})
		sub := r.subscriber()
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		r.publish("o1")
		var times []time.Time
		for range 4 {
			msg := <-messages
			times = append(times, time.Now())
			msg.Nack()
		}
		(<-messages).Ack()
		r.settled()
		for i, want := range []int{50, 100, 200} {
			wantDelay(t, times[i:], time.Duration(want)*time.Millisecond)
		}
		sub.Close()
	})
}

func TestStock_NakDelayOfTheUserStandsForNacksWithoutADecision(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, adapter string) {
		r := newRig(t, setup{adapter: adapter, fallback: nats.NewMaxRetryDelay(300*time.Millisecond, 2)})
		sub := r.subscriber()
		defer sub.Close()
		messages, err := sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		r.publish("o1")
		var times []time.Time
		for range 2 {
			msg := <-messages
			times = append(times, time.Now())
			msg.Nack()
		}
		wantDelay(t, times, 300*time.Millisecond)
		r.settled() // the second nack has terminated it
	})
}
