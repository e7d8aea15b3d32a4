package sourcetest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/oncemill/oncemill/consumer"
)

var decisionCases = []testCase{
	{name: "decisions/ack-ends-a-message", why: "every message comes again after a restart", test: func(k *kit) {
		ids := numbered("m", 10)
		k.publish(ids...)
		m := k.consume(Member{}, func(*call) consumer.Decision { return ack })
		k.untilAcked(len(ids))
		m.stop()
		k.nothingLeft()
		k.once("acknowledged", ids...)
		k.nothingComesAgain()
	}},
	{name: "decisions/may-be-made-at-once", why: "a source that calls handle under its own lock hangs for ever",
		test: func(k *kit) {
			ids := numbered("m", 50)
			k.publish(ids...)
			m := k.handOver(k.open(Member{}),
				func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
					k.decide(k.begin(ctx, d), ack)
					done(ack)
				})
			k.untilAcked(len(ids))
			m.stop()
			k.nothingLeft()
		}},
	{name: "decisions/retry-comes-again-and-not-early",
		why: "a retry that comes early burns the attempts of a message " +
			"while a service is down, and one that is forgotten is a lost message", test: func(k *kit) {
			delays := map[string]time.Duration{"at-once": 0, "short": short, "longer": 3 * short}
			k.publish(slices.Sorted(maps.Keys(delays))...)
			m := k.consume(Member{}, func(c *call) consumer.Decision {
				if c.number == 1 {
					return retry(delays[c.id])
				}
				return ack
			})
			k.untilAcked(len(delays))
			m.stop()
			k.nothingLeft()
			for id, delay := range delays {
				calls := k.of(id)
				if len(calls) != 2 {
					k.Errorf("%s was handed over %d times, want twice", id, len(calls))
				}
				if waited := calls[1].began.Sub(calls[0].decided); waited < delay {
					k.Errorf("%s came again after %v, want not before %v", id, waited, delay)
				}
			}
		}},
	{name: "decisions/a-retry-holds-up-no-other", why: "one message that waits for an hour stops all others",
		needs: []Capability{Concurrency}, test: func(k *kit) {
			k.publish("waits")
			m := k.consume(Member{}, func(c *call) consumer.Decision {
				if c.id == "waits" {
					return retry(long)
				}
				return ack
			})
			k.until("the message that waits", func() bool {
				calls := k.of("waits")
				return len(calls) > 0 && !calls[0].decided.IsZero()
			})
			k.publish(numbered("m", 10)...)
			k.untilAcked(10)
			m.stop()
			k.kept(1)
			k.once("waits for an hour", "waits")
		}},
	{name: "decisions/rejection-ends-a-message", why: "a message that nobody can handle comes for ever",
		needs: []Capability{Rejection}, test: func(k *kit) {
			k.publish("rejected", "next")
			m := k.consume(Member{}, func(c *call) consumer.Decision {
				if c.id == "rejected" {
					return reject
				}
				return ack
			})
			k.untilAcked(1)
			k.until("the message to be rejected", func() bool { return len(k.of("rejected")) > 0 })
			m.stop()
			k.nothingLeft()
			k.once("rejected", "rejected")
			k.nothingComesAgain()
		}},
	{name: "decisions/left-alone-comes-again", why: "a message is lost whose other owner died before it settled it",
		test: func(k *kit) {
			k.publish("left", "next")
			m := k.consume(Member{}, func(c *call) consumer.Decision {
				if c.id == "left" && c.number == 1 {
					return leave
				}
				return ack
			})
			k.untilAcked(2)
			m.stop()
			k.nothingLeft()
		}},
	{name: "deliveries/are-what-was-published", why: "handlers get a message that is not theirs, or that another " +
		"handler has changed", test: deliveriesAreWhatWasPublished},
	{name: "deliveries/have-a-processor-that-guards-them", why: "handlers are guarded by another processor than the " +
		"one that the program has configured", test: func(k *kit) {
		once := k.processor(k.store, consumer.Config{})
		source := k.open(Member{Once: once})
		if source.Processor() != once {
			k.Error("Processor returns another one than the source was made with")
		}
		if err := source.Check(k.Context(), k.Topic); err != nil {
			k.Errorf("Check of a topic that is there: %v", err)
		}
	}},
}

func deliveriesAreWhatWasPublished(k *kit) {
	k.publish("m1")
	m := k.consume(Member{}, func(c *call) consumer.Decision {
		d := c.delivery
		if d.Handler != "" || d.Topic == "" || string(d.Payload) != "payload of m1" || d.Header.Get("changed") != "" {
			k.Errorf("call %d got handler %q, topic %q, payload %q, header %q", c.number, d.Handler, d.Topic, d.Payload,
				d.Header)
		}
		if d.Header != nil {
			d.Header["changed"] = "by a handler" // which may do so
		}
		if c.number < 3 {
			return retry(0)
		}
		return ack
	})
	k.untilAcked(1)
	m.stop()
	for i, c := range k.of("m1") {
		if count := c.delivery.Count; count != 0 && (count <= i || i == 0 && count != 1) {
			k.Errorf("call %d says that it is delivery %d", i+1, count)
		}
	}
}
