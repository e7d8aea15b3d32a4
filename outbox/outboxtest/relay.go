package outboxtest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A broker remembers what was published. answer decides; nil acknowledges everything.
type broker struct {
	answer func(ctx context.Context, messages []producer.Message) error
	mu     sync.Mutex
	got    map[string]int // how often each ID arrived
}

func (b *broker) Publish(ctx context.Context, messages ...producer.Message) error {
	b.mu.Lock()
	for _, m := range messages {
		b.got[m.ID]++
	}
	b.mu.Unlock()
	if b.answer == nil {
		return nil
	}
	return b.answer(ctx, messages)
}

func newBroker() *broker { return &broker{got: map[string]int{}} }

// copies returns how often an ID arrived.
func (b *broker) copies(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got[id]
}

// ids returns how many IDs arrived.
func (b *broker) ids() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got)
}

// quick is a config of relays for cases.
func quick() outbox.Config {
	return outbox.Config{
		PollInterval: 50 * time.Millisecond,
		Backoff:      oncemill.Backoff{Min: 2 * time.Millisecond, Max: 20 * time.Millisecond},
		Logger:       slog.New(slog.DiscardHandler),
	}
}

// relay runs a relay, and returns what stops it and waits for its end.
func (k *kit) relay(s outbox.Store, b *broker, cfg outbox.Config) (stop func()) {
	k.Helper()
	r, err := outbox.NewRelay(s, b, cfg)
	if err != nil {
		k.Fatalf("make a relay: %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(k.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			k.Errorf("the relay ended with %v, want nil", err)
		}
	})
}

// eventually waits until the condition holds.
func (k *kit) eventually(what string, condition func() bool) {
	k.Helper()
	deadline := time.Now().Add(waitLimit)
	for !condition() {
		if time.Now().After(deadline) {
			k.Fatalf("waited in vain: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// mute is a store whose relay dies before it can record results, with leases that end soon.
type mute struct{ outbox.Store }

func (m mute) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	r.Lease = short
	return m.Store.Lease(ctx, r)
}

func (mute) Settle(context.Context, string, []outbox.Result) error {
	return errors.New("disk I/O error")
}

var relayCases = []testCase{
	{"relay/committed-is-published-once", "a message is lost, doubled or made up while nothing fails", func(k *kit) {
		b := newBroker()
		stop := k.relay(k.Store, b, quick())
		defer stop()
		ids := numbered("order ", 60)
		for i, id := range ids {
			tx := k.begin()
			k.publish(tx, message(id))
			if i%3 == 1 {
				k.rollback(tx)
			} else {
				k.commit(tx)
			}
		}
		k.eventually("all committed messages are published", func() bool { return b.ids() >= 40 })
		stop()
		k.wants("after the relay's end")
		for i, id := range ids {
			want := 1
			if i%3 == 1 {
				want = 0
			}
			if n := b.copies(id); n != want {
				k.Errorf("%q was published %d times, want %d", id, n, want)
			}
		}
	}},
	{"relay/several-publish-each-row-once", "relays that share an outbox publish rows twice though nothing fails",
		func(k *kit) {
			b := newBroker()
			b.answer = func(context.Context, []producer.Message) error {
				<-time.After(10 * time.Millisecond) // the others look meanwhile
				return nil
			}
			for range 4 {
				cfg := quick()
				cfg.BatchSize = 7
				defer k.relay(k.another(), b, cfg)()
			}
			ids := numbered("order ", 100)
			for _, id := range ids {
				k.write(message(id))
			}
			k.eventually("all messages are published", func() bool { return b.ids() == len(ids) })
			for _, id := range ids {
				if n := b.copies(id); n != 1 {
					k.Errorf("%q was published %d times, want once", id, n)
				}
			}
		}},
	{"relay/is-woken", "each message waits for the next poll", func(k *kit) {
		s, ok := k.Store.(interface {
			outbox.Waker
			Wake()
		})
		if !ok {
			k.Skipf("skipped: %T has no Wake", k.Store)
		}
		for range 3 {
			k.writeIDs("1")
			for range 10 { // with nobody there
				s.Wake()
			}
			select {
			case <-s.Woken():
			case <-time.After(time.Minute):
				k.Fatal("Woken receives nothing")
			}
		}
	}},
	{"relay/poison-is-parked-and-others-flow", "a message that the broker refuses stops the others, or hides its error",
		func(k *kit) {
			i := k.inspector()
			b := newBroker()
			b.answer = func(_ context.Context, messages []producer.Message) error {
				for i, m := range messages {
					if m.ID == "poison" {
						return &producer.PublishError{Failures: []producer.Failure{
							{Index: i, ID: m.ID, Err: errors.New("payload is too large")}}}
					}
				}
				return nil
			}
			cfg := quick()
			cfg.MaxAttempts = 3
			stop := k.relay(k.Store, b, cfg)
			defer stop()
			k.write(message("poison"), message("1"))
			k.write(message("2"))
			k.eventually("the good rows are published and the bad one is dead", func() bool {
				s, err := i.Stats(k.Context())
				return err == nil && s.Pending == 0 && s.Dead == 1
			})
			stop()
			if b.copies("poison") != 3 || b.copies("1") != 1 || b.copies("2") != 1 {
				k.Errorf("attempts %v, want 3 of the poison row and one of each other", b.got)
			}
			dead := k.list(outbox.Filter{States: []outbox.State{outbox.Dead}})
			if len(dead) != 1 || dead[0].Error != "payload is too large" || dead[0].Failures != 3 {
				k.Errorf("dead rows %+v", dead)
			}
		}},
	{"relay/that-dies-before-it-settles-loses-nothing", "what a crashed relay held is lost, or gets a new ID",
		func(k *kit) {
			k.write(producer.Message{Topic: "orders"}, producer.Message{Topic: "orders"})
			b := newBroker()
			cfg := quick()
			cfg.PublishTimeout = time.Second // which bounds its stop
			stop := k.relay(mute{k.Store}, b, cfg)
			defer stop()
			k.eventually("the first relay publishes", func() bool { return b.ids() == 2 })
			stop()
			k.pass()
			next := newBroker()
			stop = k.relay(k.Store, next, quick())
			defer stop()
			k.eventually("the next relay publishes them again", func() bool { return next.ids() >= 2 })
			stop()
			k.wants("after the next relay's end")
			k.wantsSuspects("suspects after the next relay's end")
			for id := range b.got {
				if next.copies(id) != 1 || next.ids() != 2 {
					k.Errorf("published as %v, and then as %v, want the same IDs, once", b.got, next.got)
				}
			}
		}},
	{"relay/that-stops-gives-back-what-hangs", "each deployment delays messages, or doubles them", func(k *kit) {
		k.write(message("acknowledged"), message("hanging"))
		entered := make(chan struct{})
		b := newBroker()
		b.answer = func(ctx context.Context, messages []producer.Message) error {
			close(entered)
			<-ctx.Done()
			failed := producer.PublishError{}
			for i, m := range messages {
				if m.ID == "hanging" {
					failed.Failures = append(failed.Failures,
						producer.Failure{Index: i, ID: m.ID, Err: ctx.Err(), Unknown: true})
				}
			}
			return &failed
		}
		cfg := quick()
		cfg.PublishTimeout, cfg.Lease = 5*time.Second, long // the timeout bounds its stop
		stop := k.relay(k.Store, b, cfg)
		defer stop()
		<-entered
		stop()
		l := k.lease()
		k.same("due after the relay's end", l.ids(), []string{"hanging"})
		if r := l.row(k, "hanging"); r.Failures != 0 || r.Unknowns != 0 {
			k.Errorf("row %+v, want nothing counted", r)
		}
		k.wantsSuspects("suspects after the relay's end")
	}},
	{"relay/keeps-rows-for-the-retention", "published rows fill the disk, or cannot be replayed", func(k *kit) {
		for _, c := range []struct {
			retention time.Duration
			kept      bool
		}{{long, true}, {outbox.DeleteAtOnce, false}, {time.Millisecond, false}} {
			id := "kept for " + c.retention.String()
			b := newBroker()
			cfg := quick()
			cfg.Retention = c.retention
			stop := k.relay(k.Store, b, cfg)
			defer stop()
			k.write(message(id))
			k.eventually("the message is published", func() bool { return b.copies(id) == 1 })
			if c.kept {
				stop()
				k.write(message(id))
				k.wants("a message that is kept, written again")
				continue
			}
			k.eventually("a message that is not kept can be written again", func() bool {
				k.write(message(id))
				return b.copies(id) > 1
			})
			stop()
			l := k.lease() // what was written last may be there
			k.settleAll(l, outbox.Result{State: outbox.Removed})
		}
	}},
}

// another is the store as another process has it.
func (k *kit) another() outbox.Store {
	k.Helper()
	if k.Reopen == nil {
		return k.Store
	}
	return k.Reopen()
}
