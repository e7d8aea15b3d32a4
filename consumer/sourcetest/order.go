package sourcetest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/oncemill/oncemill/consumer"
)

var orderCases = []testCase{
	{name: "order/kept-through-failures-and-retries", why: "a consumer sees the later state of an account before the " +
		"earlier one", needs: []Capability{Order}, test: func(k *kit) {
		k.publishKeyed(3, 10)
		m := k.consume(Member{}, fails)
		k.untilAcked(30)
		m.stop()
		k.nothingLeft()
		k.inOrder()
	}},
	{name: "order/kept-over-a-drain", why: "each deployment mixes up the messages of a key",
		needs: []Capability{Order, Drain}, test: func(k *kit) {
			k.publishKeyed(3, 20)
			for acked := 10; acked < 60; acked += 10 {
				m := k.consume(Member{}, fails)
				k.untilAcked(acked)
				m.stop()
			}
			m := k.consume(Member{}, fails)
			k.untilAcked(60)
			m.stop()
			k.nothingLeft()
			k.inOrder()
		}},
	{name: "in-flight/no-more-than-configured", why: "a burst starts more handlers than the database has connections",
		test: func(k *kit) {
			const n = 4
			ids := numbered("m", 5*n)
			k.publish(ids...)
			var inside, most atomic.Int64
			m := k.consume(Member{MaxInFlight: n}, func(*call) consumer.Decision {
				now := inside.Add(1)
				defer inside.Add(-1)
				for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				}
				k.wait(after(short / 10))
				return ack
			})
			k.untilAcked(len(ids))
			m.stop()
			k.nothingLeft()
			if most.Load() > n {
				k.Errorf("%d calls at once, want at most %d", most.Load(), n)
			}
		}},
	{name: "in-flight/several-at-once", why: "one slow handler holds up all messages", needs: []Capability{Concurrency},
		test: func(k *kit) {
			k.publish(numbered("m", 3)...)
			together := make(chan struct{})
			var inside atomic.Int64
			m := k.consume(Member{}, func(*call) consumer.Decision {
				if inside.Add(1) == 3 {
					close(together)
				}
				k.wait(together)
				return ack
			})
			k.untilAcked(3)
			m.stop()
			k.nothingLeft()
		}},
}

// publishKeyed publishes n messages of each of some keys, by turns. Their IDs sort as they are published.
func (k *kit) publishKeyed(keys, n int) {
	var messages []Message
	for i := range n {
		for key := range keys {
			messages = append(messages, message(fmt.Sprintf("k%d-%03d", key, i), fmt.Sprintf("k%d", key)))
		}
	}
	k.Publish(messages...)
}

// fails makes every fourth message fail at first.
func fails(c *call) consumer.Decision {
	if c.number == 1 && strings.HasSuffix(c.id, "1") || c.number < 3 && strings.HasSuffix(c.id, "5") {
		return retry(short / 4)
	}
	return ack
}

// inOrder wants each key's messages to have been handled one after the other: no call began before those for the
// earlier ones had ended. Where a broker keeps a position, what was acknowledged behind a retry may come once more.
func (k *kit) inOrder() {
	k.Helper()
	calls := k.all()
	slices.SortStableFunc(calls, func(a, b call) int { return a.began.Compare(b.began) })
	before, acked := map[string]call{}, map[string]bool{}
	for _, c := range calls {
		if acked[c.id] {
			continue
		}
		acked[c.id] = c.decision.Action == consumer.Ack
		key, _, _ := strings.Cut(c.id, "-")
		last, found := before[key]
		switch {
		case !found:
		case c.id < last.id || c.id > last.id && last.decision.Action != consumer.Ack:
			k.Errorf("%v came after %v", &c, &last)
		case c.began.Before(last.decided):
			k.Errorf("%v began while %v was handled", &c, &last)
		}
		before[key] = c
	}
}
