package sourcetest

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/oncemill/oncemill/consumer"
)

func needsHook(missing func(s *Subject) bool, what string) func(s *Subject) string {
	return func(s *Subject) string {
		if missing(s) {
			return "the subject cannot make this fault: " + what
		}
		return ""
	}
}

var faultCases = []testCase{
	{name: "members/share-the-messages", why: "a second process adds nothing, or repeats the work of the first",
		needs: []Capability{Members}, test: func(k *kit) {
			ids := numbered("m", 60)
			work := func(*call) consumer.Decision {
				k.wait(after(short / 40))
				return ack
			}
			k.publish(ids[:20]...)
			a := k.consume(Member{MaxInFlight: 4}, work)
			k.untilAcked(5)
			b := k.consume(Member{MaxInFlight: 4}, work)
			k.publish(ids[20:]...)
			k.untilAcked(len(ids))
			a.stop()
			b.stop()
			k.nothingLeft()
			// Some brokers take messages from the first when the second joins.
			if n := len(k.all()); n > len(ids)+len(ids)/2 {
				k.Errorf("%d messages were handed over %d times", len(ids), n)
			}
		}},
	{name: "faults/broker-restarts", why: "a restart of the broker ends the consumer, loses messages or repeats them",
		hook: needsHook(func(s *Subject) bool { return s.Restart == nil }, "Restart"), test: func(k *kit) {
			ids := numbered("m", 20)
			k.publish(ids[:10]...)
			restarted := make(chan struct{})
			m := k.guard(Member{}, func(_ context.Context, id string, _ int) error {
				if id == "m005" {
					k.wait(restarted)
				}
				return nil
			})
			k.until("calls", func() bool { return len(k.of("m005")) > 0 })
			k.Restart()
			close(restarted)
			k.publish(ids[10:]...)
			k.untilAcked(len(ids))
			m.stop()
			k.nothingLeftAtLast()
			k.once("over a restart", ids...)
		}},
	{name: "faults/lost-acks", why: "an ack that gets lost is never made up for, and its message comes for ever",
		hook: needsHook(func(s *Subject) bool { return s.LoseAcks == nil }, "LoseAcks"), test: func(k *kit) {
			ids := numbered("m", 5)
			restore := k.LoseAcks()
			k.publish(ids...)
			m := k.guard(Member{}, func(context.Context, string, int) error { return nil })
			k.untilAcked(len(ids))
			restore()
			k.until("acks to be made up for", func() bool { return k.Left() == 0 })
			m.stop()
			k.once("whose acks were lost", ids...)
		}},
	{name: "faults/moved-to-another-member",
		why: "a member that was taken for dead acknowledges or gives back a message " +
			"that is another's by now", needs: []Capability{Members},
		hook: needsHook(func(s *Subject) bool { return s.Cut == nil }, "Cut"), test: movedToAnotherMember},
}

// movedToAnotherMember cuts a member off during a call. Another one gets the message, and settles it. What the first
// decides then must change nothing.
func movedToAnotherMember(k *kit) {
	k.publish("moves")
	late := make(chan struct{})
	a := k.consume(Member{}, func(c *call) consumer.Decision {
		if c.number == 1 {
			k.wait(late)
			return retry(0)
		}
		return ack
	})
	k.until("the call of the first member", func() bool { return len(k.of("moves")) == 1 })
	a.cut = true
	heal := k.Cut(a.source)
	var again atomic.Int64
	b := k.consume(Member{}, func(c *call) consumer.Decision {
		if c.id == "moves" {
			again.Add(1)
		}
		return ack
	})
	k.untilAcked(1)
	heal()
	a.drain() // so that it does not hand the message over again itself
	<-after(short)
	close(late)
	k.publish("next")
	k.until("what comes next", func() bool { return len(k.of("next")) > 0 })
	k.until("all decisions", func() bool {
		for _, c := range k.all() {
			if c.decided.IsZero() {
				return false
			}
		}
		return true
	})
	b.stop()
	a.end()
	if n := again.Load(); n != 1 {
		k.Errorf("the second member got the message %d times, want once", n)
	}
	k.nothingLeft()
	k.nothingComesAgain()
}

var batchCases = []testCase{
	{name: "batches/errors-steer-their-own-messages",
		why: "one message that fails makes its neighbours come again, or " +
			"is taken for done with them", hook: func(s *Subject) string {
			if s.Batches == nil {
				return "there are no batches"
			}
			return ""
		}, test: func(k *kit) {
			ids := numbered("m", 12)
			k.publish(ids...)
			config := k.config(Member{})
			m := k.run(func(ctx context.Context, _ *member) error {
				return k.Batches(ctx, config, func(ctx context.Context, ids []string) (errs []error) {
					for _, id := range ids {
						c := k.begin(ctx, delivery(id))
						decision := ack
						if c.number == 1 && (id == "m003" || id == "m007") {
							decision = retry(0)
						}
						k.decide(c, decision)
						errs = append(errs, decision.Err)
					}
					return errs
				})
			})
			k.untilAcked(len(ids))
			m.stop()
			k.nothingLeft()
			for _, id := range ids {
				want := 1
				if id == "m003" || id == "m007" {
					want = 2
				}
				if n := len(k.of(id)); n != want {
					k.Errorf("%s ran %d times, want %s", id, n, fmt.Sprint(want))
				}
			}
		}},
}
