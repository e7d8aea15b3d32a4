package sourcetest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
)

func needsDeadline(s *Subject) string {
	if s.AckWait == 0 {
		return "the broker has no ack deadline"
	}
	return ""
}

func needsDeliveries(s *Subject) string {
	if s.Deliveries == nil {
		return "deliveries are not counted"
	}
	return ""
}

var guardCases = []testCase{
	{name: "deadline/a-long-handler-gets-one-delivery", why: "a handler that is still working gets its message again",
		hook: needsDeadline, test: func(k *kit) {
			k.publish("long", "next")
			m := k.consume(Member{}, func(c *call) consumer.Decision {
				if c.id == "long" {
					k.wait(after(3 * k.AckWait))
				}
				return ack
			})
			k.untilAcked(2)
			m.stop()
			k.nothingLeft()
			k.once("handled for three ack deadlines", "long", "next")
		}},
	{name: "copies/run-once-and-all-end", why: "a message that a broker or a producer repeats has a second effect, or " +
		"its copies come for ever", test: func(k *kit) {
		k.publish("m1", "m2", "m1", "m1")
		m := k.guard(Member{}, func(context.Context, string, int) error { return nil })
		k.untilAcked(2)
		k.publish("m3", "m1")
		k.untilAcked(3)
		m.stop()
		k.nothingLeftAtLast()
		k.once("copies", "m1", "m2", "m3")
	}},
	{name: "busy/keys-use-up-no-delivery",
		why: "a message whose key is busy for long reaches the limit of deliveries, " +
			"and nobody gets it any more", needs: []Capability{Sparing}, hook: needsDeliveries, test: func(k *kit) {
			k.hold(5*short, "busy")
			once := k.processor(k.store, consumer.Config{MaxWait: short / 4})
			k.publish("busy")
			m := k.guard(Member{Once: once}, func(context.Context, string, int) error { return nil })
			k.untilAcked(1)
			m.stop()
			k.nothingLeft()
			if n := k.Deliveries(); n != 1 {
				k.Errorf("%d deliveries of a message whose key was busy, want one", n)
			}
		}},
	{name: "busy/keys-hold-up-no-free-one", why: "a few keys that are busy for long stop a worker, although it has " +
		"other work", needs: []Capability{Concurrency, Room}, test: busyKeysHoldUpNoFreeOne},
	{name: "outage/uses-up-no-delivery", why: "an outage of the store uses up the deliveries of all messages",
		needs: []Capability{Sparing}, hook: needsDeliveries, test: func(k *kit) {
			k.publish("m1")
			store := &away{Store: k.store}
			store.down.Store(true)
			once := k.processor(store, consumer.Config{MaxWait: short / 4})
			m := k.guard(Member{Once: once}, func(context.Context, string, int) error { return nil })
			k.until("a claim in vain", func() bool { return store.refused.Load() > 0 })
			<-after(2 * short)
			store.down.Store(false)
			k.untilAcked(1)
			m.stop()
			k.nothingLeft()
			if n := k.Deliveries(); n != 1 {
				k.Errorf("%d deliveries of a message that an outage held up, want one", n)
			}
		}},
	{name: "outage/nothing-is-lost", why: "messages that come during an outage of the store never run",
		test: func(k *kit) {
			ids := numbered("m", 5)
			k.publish(ids...)
			store := &away{Store: k.store}
			store.down.Store(true)
			once := k.processor(store, consumer.Config{MaxWait: short / 4})
			m := k.guard(Member{Once: once}, func(context.Context, string, int) error { return nil })
			k.until("a claim in vain", func() bool { return store.refused.Load() > 0 })
			<-after(2 * short)
			if n := len(k.all()); n > 0 {
				k.Errorf("%d handlers ran while the store was away", n)
			}
			store.down.Store(false)
			k.untilAcked(len(ids))
			m.stop()
			k.nothingLeft()
			k.once("in an outage", ids...)
		}},
}

// busyKeysHoldUpNoFreeOne has as many busy keys as there may be messages in flight, and a free one behind them.
func busyKeysHoldUpNoFreeOne(k *kit) {
	const n = 4
	busy := numbered("busy", n)
	k.hold(waitLimit, busy...)
	k.publish(busy...)
	k.publish("free")
	once := k.processor(k.store, consumer.Config{MaxWait: waitLimit})
	m := k.guard(Member{Once: once, MaxInFlight: n}, func(context.Context, string, int) error { return nil })
	k.until("the free message, behind as many busy ones as may be in flight", func() bool {
		return len(k.of("free")) > 0
	})
	for _, c := range k.all() {
		if c.id != "free" {
			k.Errorf("%s ran before the free message did, although its key was busy", c.id)
		}
	}
	k.untilAcked(1)
	m.stop()
	k.kept(n)
}

func after(d time.Duration) <-chan struct{} {
	ended := make(chan struct{})
	time.AfterFunc(d, func() { close(ended) })
	return ended
}

// away is a store that is down for a while.
type away struct {
	dedupstore.Store
	down    atomic.Bool
	refused atomic.Int64
}

var errAway = errors.New("sourcetest: the store is away")

// Claim implements [dedupstore.Store].
func (s *away) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	if !s.down.Load() {
		return s.Store.Claim(ctx, requests)
	}
	s.refused.Add(1)
	results := make([]dedupstore.ClaimResult, len(requests))
	for i := range results {
		results[i].Err = errAway
	}
	return results
}
