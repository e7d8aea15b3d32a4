package sourcetest

import (
	"context"
	"strings"
	"time"

	"github.com/oncemill/oncemill/consumer"
)

var drainCases = []testCase{
	{name: "drain/calls-go-on-and-their-decisions-count",
		why: "each deployment cuts handlers off, or repeats what they " +
			"have done", needs: []Capability{Drain}, test: func(k *kit) {
			k.publish("m1")
			finish := make(chan struct{})
			m := k.consume(Member{}, func(c *call) consumer.Decision {
				k.wait(finish)
				if c.ctx.Err() != nil {
					k.Errorf("the context of a call has ended within the grace: %v", context.Cause(c.ctx))
				}
				return ack
			})
			k.until("a call", func() bool { return len(k.all()) == 1 })
			m.drain()
			select {
			case <-m.ended:
				k.Error("Run returned while a call was going on")
			case <-after(short):
			}
			close(finish)
			m.stop()
			k.nothingLeft()
			k.once("decided in the drain", "m1")
			k.nothingComesAgain()
		}},
	{name: "drain/the-rest-is-given-back",
		why: "Run handles all that is left in a topic before it returns, or what it " +
			"had received is lost", test: func(k *kit) {
			const n = 200
			k.publish(numbered("m", n)...)
			m := k.consume(Member{MaxInFlight: 1}, func(*call) consumer.Decision {
				k.wait(after(5 * time.Millisecond))
				return ack
			})
			k.untilAcked(3)
			m.stop()
			if got := len(k.all()); got == n {
				k.Errorf("Run handed over all %d messages before it returned", n)
			}
			next := k.consume(Member{}, func(*call) consumer.Decision { return ack })
			k.untilAcked(n)
			next.stop()
			k.nothingLeft()
		}},
	{name: "drain/what-waits-is-given-back", why: "a deployment waits for a retry that is due in an hour, or loses it",
		needs: []Capability{Drain, Concurrency}, test: func(k *kit) {
			k.publish("waits", "runs")
			finish := make(chan struct{})
			m := k.consume(Member{}, func(c *call) consumer.Decision {
				if c.id == "runs" {
					k.wait(finish)
				}
				return retry(long)
			})
			k.until("both calls", func() bool { return len(k.all()) == 2 })
			began := time.Now()
			m.drain()
			close(finish)
			m.stop()
			if lasted := time.Since(began); lasted > usualGrace/2 {
				k.Errorf("the drain took %v although no call went on", lasted)
			}
			k.kept(2)
			k.once("to come again in an hour", "waits", "runs")
		}},
	{name: "drain/contexts-end-with-the-grace", why: "a handler that hangs keeps a process from its end for ever",
		needs: []Capability{Drain, Grace}, test: func(k *kit) {
			const grace = 3 * short
			k.publish("hangs")
			cut := make(chan time.Time, 1)
			m := k.consume(Member{Grace: grace}, func(c *call) consumer.Decision {
				if c.number == 1 {
					k.wait(c.ctx.Done())
					cut <- time.Now()
				}
				return retry(0)
			})
			k.until("a call", func() bool { return len(k.all()) == 1 })
			began := time.Now()
			m.drain()
			k.until("the end of the call's context", func() bool { return len(cut) > 0 })
			if lasted := (<-cut).Sub(began); lasted < grace {
				k.Errorf("the context of a call ended %v after that of Run, want not before %v", lasted, grace)
			}
			m.end() // Run may say that it was cut short
			k.kept(1)
		}},
	{name: "end/nothing-is-left-running", why: "a process that starts and stops its consumers leaks goroutines, or " +
		"handles messages that it has given back", needs: []Capability{End}, test: func(k *kit) {
		k.publish(numbered("m", 5)...)
		source := k.open(Member{})
		first := true
		for range 2 { // Run may be called again
			m := k.handOver(source, func(ctx context.Context, d consumer.Delivery, done func(consumer.Decision)) {
				c := k.begin(ctx, d)
				decision := ack
				if first && c.id == "m004" {
					decision = retry(long)
				}
				k.decide(c, decision)
				done(decision)
			})
			k.until("the calls", func() bool { return len(k.all()) >= 5 })
			m.stop()
			for end := time.Now().Add(waitLimit / 4); len(m.goroutines()) > 0; time.Sleep(pollEvery) {
				if time.Now().After(end) {
					k.Fatalf("goroutines are left after Run:\n%s", strings.Join(m.goroutines(), "\n\n"))
				}
			}
			first = false
		}
	}},
}
