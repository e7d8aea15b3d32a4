package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// hang answers as a broker that never answers calls with certain messages.
func hang(prefix string) func(context.Context, []producer.Message) error {
	return func(ctx context.Context, messages []producer.Message) error {
		for _, m := range messages {
			if strings.HasPrefix(m.ID, prefix) {
				<-ctx.Done()
				return ctx.Err()
			}
		}
		return nil
	}
}

func numbered(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(prefix, i))
	}
	return ids
}

func TestRelay_RowsThatHangAgainDelayNoHealthyRow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore).write(numbered("hanging", 40)...), &broker{answer: hang("hanging")}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 31*time.Second) // each hung once, all in one call
		begin := time.Now()
		for i := range 600 {
			s.write(fmt.Sprint("healthy", i))
			after(t, time.Second)
		}
		stop()
		for i := range 599 {
			at := b.times(fmt.Sprint("healthy", i), begin)
			if written := time.Duration(i) * time.Second; len(at) != 1 || at[0] > written+time.Second {
				t.Fatalf("healthy row was written at %v and published at %v, want once within a poll", written, at)
			}
		}
		if n := b.attempts()["hanging0"]; n < 5 {
			t.Errorf("hanging row was tried %d times in 10 min, want again and again", n)
		}
	})
}

// As docs/outbox.md says of a topic that does not answer, whose rows go on coming.
func TestRelay_NewRowsThatHangDelayOthersByATimeoutAtMost(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := &broker{answer: func(ctx context.Context, messages []producer.Message) error {
			var unknown []producer.Failure
			for i, m := range messages {
				if strings.HasPrefix(m.ID, "hanging") {
					unknown = append(unknown, producer.Failure{Index: i, ID: m.ID, Err: errors.New("no answer"), Unknown: true})
				}
			}
			if unknown == nil {
				return nil
			}
			<-ctx.Done()
			return &producer.PublishError{Failures: unknown}
		}}
		const timeout = 5 * time.Second
		s := new(fakeStore)
		stop := start(t, newRelay(t, s, b, outbox.Config{PublishTimeout: timeout}))
		begin := time.Now()
		for i := range 300 {
			s.write(fmt.Sprint("healthy", i), fmt.Sprint("hanging", i))
			after(t, time.Second)
		}
		after(t, timeout)
		stop()
		for i := range 300 {
			at := b.times(fmt.Sprint("healthy", i), begin)
			if written := time.Duration(i) * time.Second; len(at) != 1 || at[0] > written+timeout+time.Second {
				t.Fatalf("healthy row was written at %v and published at %v, want once within the timeout", written, at)
			}
		}
	})
}

func TestRelay_AFewRowsThatHangDoNotStarveOtherSuspects(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore), &broker{answer: hang("hanging")}
		for i := range 3 {
			s.write(fmt.Sprint("hanging", i))
			s.write(numbered(fmt.Sprint("innocent", i, "-"), 100)...)
		}
		for _, r := range s.rows {
			r.Unknowns = 1
		}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 25*time.Second) // before the first of those that hang is given up
		n := b.attempts()
		for i := range 3 {
			for _, id := range numbered(fmt.Sprint("innocent", i, "-"), 100) {
				if n[id] != 1 {
					t.Errorf("row %s was published %d times while others hang, want once", id, n[id])
				}
			}
		}
		after(t, 10*time.Second)
		stop()
		for _, r := range s.rows {
			if strings.HasPrefix(r.Message.ID, "innocent") && r.state != "published" {
				t.Errorf("row %s is %s, want published", r.Message.ID, r.state)
			}
		}
	})
}

func TestRelay_CallsForSuspectsAreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write(numbered("hanging", 1000)...)
		var calls, most atomic.Int64
		b := &broker{answer: func(ctx context.Context, messages []producer.Message) error {
			most.Store(max(most.Load(), calls.Add(1)))
			defer calls.Add(-1)
			return hang("hanging")(ctx, messages)
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{BatchSize: 1000}))
		after(t, 10*time.Minute)
		stop()
		if n := most.Load(); n < 2 || n > 33 {
			t.Errorf("%d calls of the publisher side by side, want up to 32 for suspects and one", n)
		}
	})
}

func TestRelay_StopWaitsForSuspectsToo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore).write("a", "b"), &broker{answer: hang("")}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 35*time.Second) // both are tried again, by calls of their own
		s.write("c")
		after(t, 2*time.Second)
		begin := time.Now()
		stop()
		if d := time.Since(begin); d != 10*time.Second {
			t.Errorf("stop took %v, want 10 s", d)
		}
		for id, unknowns := range map[string]int{"a": 1, "b": 1, "c": 0} {
			if r := s.row(t, id); r.state != "pending" || r.token != "" || r.Unknowns != unknowns {
				t.Errorf("row %s is %s, leased by %q, %d unknowns; want it given back", id, r.state, r.token, r.Unknowns)
			}
		}
	})
}

func TestRelay_SuspectsAreTriedNoMoreOftenThanTheStoreIsPolledWhileTheBrokerIsAway(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write(numbered("", 5000)...)
		for _, r := range s.rows {
			r.Unknowns = 1
		}
		b := &broker{answer: func(context.Context, []producer.Message) error { return errors.New("no route to host") }}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, time.Minute)
		stop()
		if n := b.callCount(); n > 4*8*100 {
			t.Errorf("%d calls in a minute without a broker, want about 32 a second", n)
		}
	})
}
