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
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// lookEvery is how often workers look at their consumers again in these tests.
const lookEvery = 20 * time.Millisecond

// A looked consumer counts how often it was looked at, and can refuse.
type looked struct {
	jetstream.Consumer
	looks   atomic.Int64
	refuses atomic.Pointer[error]
}

func (l *looked) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	l.looks.Add(1)
	if err := l.refuses.Load(); err != nil {
		return nil, *err
	}
	return l.Consumer.Info(ctx)
}

// looksAgain waits until the consumer was looked at some times more.
func (l *looked) looksAgain(t *testing.T) {
	t.Helper()
	from := l.looks.Load()
	until(t, "further looks at the consumer", func() bool { return l.looks.Load() >= from+5 })
}

// changes are changes of a consumer that a server lets pass.
var changes = map[string]struct {
	field    string // in the error
	from, to string // in the error
	change   func(*jetstream.ConsumerConfig)
}{
	"AckWait":           {"AckWait", "30s", "40s", func(c *jetstream.ConsumerConfig) { c.AckWait = 40 * time.Second }},
	"BackOff":           {"BackOff", "[]", "[30s 1m0s]", func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{30 * time.Second, time.Minute} }},
	"HeadersOnly":       {"HeadersOnly", "false", "true", func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }},
	"MaxDeliver":        {"MaxDeliver", "-1", "20", func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 20 }},
	"MaxAckPending":     {"MaxAckPending", "1000", "500", func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 500 }},
	"MaxRequestBatch":   {"MaxRequestBatch", "0", "300", func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 300 }},
	"MaxRequestExpires": {"MaxRequestExpires", "0s", "2s", func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = 2 * time.Second }},
}

// The worker's view of the consumer is not true any more: it drains and says what was changed. Nothing is lost by that,
// and run again it works with what the consumer is now.
func TestWorker_ChangedConsumerIsNoticedWhileNothingIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.publish(1, oneKey)
			release := make(chan struct{})
			w := r.worker(func(ctx context.Context, _ jetstream.Msg) error {
				select {
				case <-release:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			w.LookEvery(lookEvery)
			ended := make(chan error, 1)
			go func() { ended <- w.Run(context.Background()) }()
			until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
			config := r.info().Config
			c.change(&config)
			r.open(config)
			r.drains(w)
			close(release)
			r.wantChanged(await(t, ended), c.field, c.from, c.to)
			r.acked(1) // by the drain: the handler ran on

			r.publish(2, oneKey) // one of them a copy
			stop := r.start(w)
			r.acked(3)
			r.stops(stop)
			if finished, runs := r.done(); finished != 2 || runs != 2 {
				t.Errorf("%d messages were finished in %d runs, want 2", finished, runs)
			}
		})
	}
}

// drains waits until a worker takes no more messages, which it does when it has begun to end.
func (r *rig) drains(w *natsjs.Worker) {
	r.t.Helper()
	until(r.t, "the end of requests for messages", func() bool { return r.info().NumWaiting == 0 })
	if err := w.Run(r.t.Context()); !errors.Is(err, natsjs.ErrRunning) {
		r.t.Errorf("Run has not waited for the handler: %v", err)
	}
}

// await returns what Run returned.
func await(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(longWait):
		t.Fatal("Run did not end")
		return nil
	}
}

// wantChanged checks the error of a run whose consumer was changed.
func (r *rig) wantChanged(err error, field, from, to string) {
	r.t.Helper()
	var changed *dedupstore.SetupError
	if !errors.As(err, &changed) || changed.Subject != field+` of consumer "billing" of stream "orders"` {
		r.t.Fatalf("Run: %v, want a SetupError about %s", err, field)
	}
	if says := fmt.Sprintf("was changed from %s to %s while it was in use: run the worker again", from, to); !strings.Contains(err.Error(), says) {
		r.t.Errorf("Run: %q does not say %q", err, says)
	}
}

func TestSource_ChangedConsumerIsNoticedWhileNothingIsWrong(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	s := r.source()
	s.LookEvery(lookEvery)
	var delivered atomic.Int64
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(context.Background(), "orders", func(_ context.Context, _ consumer.Delivery, done func(consumer.Decision)) {
			delivered.Add(1)
			done(consumer.Decision{Action: consumer.Ack})
		})
	}()
	until(t, "the message", func() bool { return delivered.Load() == 1 })
	r.open(jetstream.ConsumerConfig{AckWait: 40 * time.Second})
	r.wantChanged(await(t, ended), "AckWait", "30s", "40s")
	r.acked(1)
}

// Somebody deletes the consumer and makes it again, otherwise, before anybody looks.
func TestWorker_ConsumerThatIsMadeAnewOtherwiseIsNoticed(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	w := r.worker(succeed)
	w.LookEvery(lookEvery)
	w.GoneFor(longWait)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(context.Background()) }()
	r.acked(1)
	if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	r.open(jetstream.ConsumerConfig{AckWait: 40 * time.Second})
	r.wantChanged(await(t, ended), "AckWait", "30s", "40s")
}

// Groups can be added while requests without one are outstanding: from then on the server refuses them all.
func TestWorker_PriorityGroupsThatAreAddedEndTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	w := r.worker(succeed)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	r.acked(1)
	config := r.info().Config
	config.PriorityGroups, config.PriorityPolicy, config.PinnedTTL = []string{"a"}, jetstream.PriorityPolicyPinned, time.Minute
	r.open(config)
	r.wantChanged(await(t, ended), "PriorityGroups", "[]", "[a]")
}

// Made anew without acks, a consumer forgets what it delivers: a crash loses it.
func TestWorker_ConsumerThatIsMadeAnewWithoutAcksEndsTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publish(1, oneKey)
	w := r.worker(succeed)
	w.LookEvery(lookEvery)
	w.GoneFor(longWait)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	r.acked(1)
	config := r.info().Config
	config.AckPolicy = jetstream.AckNonePolicy
	if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.CreateConsumer(t.Context(), "orders", config); err != nil {
		t.Fatal(err)
	}
	r.wantChanged(await(t, ended), "AckPolicy", "AckExplicit", "AckNone")
}

// A change that does not concern the worker's own work is no reason to end, nor is a look that fails: fetches tell.
func TestWorker_LooksThatFindNothingWrongGoUnnoticed(t *testing.T) {
	t.Parallel()
	missing := error(jetstream.ErrConsumerNotFound)
	for name, happens := range map[string]struct{ first, then func(*rig, *looked) error }{
		"paused for a while": {
			func(r *rig, _ *looked) error {
				_, err := r.js.PauseConsumer(r.t.Context(), "orders", "billing", time.Now().Add(time.Hour))
				return err
			},
			func(r *rig, _ *looked) error {
				_, err := r.js.ResumeConsumer(r.t.Context(), "orders", "billing")
				return err
			},
		},
		"another description": {first: func(r *rig, _ *looked) error {
			config := r.info().Config
			config.Description = "charges orders"
			_, err := r.js.UpdateConsumer(r.t.Context(), "orders", config)
			return err
		}},
		"looks fail": {first: func(_ *rig, l *looked) error {
			l.refuses.Store(&missing)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.dead = consumer.Config{DeadLetters: elsewhere{}, DeadLetterTopic: "dead"} // or there is a warning
			cons := &looked{Consumer: r.cons}
			r.cons = cons
			w := r.worker(succeed)
			w.LookEvery(lookEvery)
			stop := r.start(w)
			r.publish(1, oneKey)
			r.finishes(1)
			if err := happens.first(r, cons); err != nil {
				t.Fatal(err)
			}
			cons.looksAgain(t)
			if happens.then != nil {
				r.publish(2, oneKey)
				cons.looksAgain(t)
				if finished, _ := r.done(); finished != 1 {
					t.Errorf("%d messages were finished, want none while the consumer rests", finished-1)
				}
				if err := happens.then(r, cons); err != nil {
					t.Fatal(err)
				}
			}
			r.publish(3, oneKey)
			r.finishes(3)
			cons.looksAgain(t)
			r.stops(stop)
			if log := r.log.String(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// A stream that is made again counts from one again: acks of its namesake's messages would be for others.
func TestWorker_AcksOfADeletedStreamAreNotForItsNamesakesMessages(t *testing.T) {
	t.Parallel()
	for name, room := range map[string]int{"with room for more": 10, "with no room": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.config.MaxInFlight = room
			r.publish(1, oneKey)
			release := make(chan struct{})
			w := r.worker(func(_ context.Context, msg jetstream.Msg) error {
				if msg.Subject() == "orders.other" {
					return oncemill.RetryAfter(time.Hour, errors.New("closed on Sundays"))
				}
				<-release
				return nil
			})
			w.LookEvery(lookEvery)
			w.GoneFor(longWait) // it is made again, however long a busy machine takes for that
			stop := r.start(w)
			until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
			if err := r.js.DeleteStream(t.Context(), "orders"); err != nil {
				t.Fatal(err)
			}
			r.open(jetstream.ConsumerConfig{})
			if _, err := r.js.Publish(t.Context(), "orders.other", nil, jetstream.WithMsgID("other")); err != nil {
				t.Fatal(err)
			}
			if room == 1 {
				if _, err := r.cons.Fetch(1, jetstream.FetchContext(t.Context())); err != nil { // another worker
					t.Fatal(err)
				}
			}
			until(t, "the other message", func() bool { return r.info().NumAckPending == 1 })
			until(t, "the worker's notice", func() bool { return strings.Contains(r.log.String(), "made again") })
			close(release)
			r.finishes(1)
			r.stops(stop)
			if n := r.info().NumAckPending; n != 1 {
				t.Errorf("%d messages are pending, want that without an outcome: %+v", n, r.info().AckFloor)
			}
		})
	}
}

// A worker that ends because its consumer was deleted still waits for its handlers. Their acks are for nobody: meanwhile an
// operator has restored the stream, or a program has made it again.
func TestWorker_AcksAfterItsConsumerWasDeletedAreNotForItsNamesakesMessages(t *testing.T) {
	t.Parallel()
	for name, room := range map[string]int{"with room for more": 10, "with no room": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{})
			r.config.MaxInFlight = room
			r.publish(1, oneKey)
			release := make(chan struct{})
			w := r.worker(func(context.Context, jetstream.Msg) error { <-release; return nil })
			w.LookEvery(lookEvery)
			ended := make(chan error, 1)
			go func() { ended <- w.Run(context.Background()) }()
			until(t, "the handler", func() bool { _, runs := r.done(); return runs == 1 })
			if err := r.js.DeleteStream(t.Context(), "orders"); err != nil {
				t.Fatal(err)
			}
			until(t, "the worker's notice", func() bool { return strings.Contains(r.log.String(), "was deleted") })
			r.open(jetstream.ConsumerConfig{})
			if _, err := r.js.Publish(t.Context(), "orders.other", nil, jetstream.WithMsgID("other")); err != nil {
				t.Fatal(err)
			}
			if _, err := r.cons.Fetch(1, jetstream.FetchContext(t.Context())); err != nil { // another worker
				t.Fatal(err)
			}
			until(t, "the other message", func() bool { return r.info().NumAckPending == 1 })
			close(release)
			if err := await(t, ended); err == nil || !strings.Contains(err.Error(), "was deleted") {
				t.Errorf("Run ended with %v", err)
			}
			if n := r.info().NumAckPending; n != 1 {
				t.Errorf("%d messages are pending, want that of the other worker: %+v", n, r.info().AckFloor)
			}
		})
	}
}

// Other filters are the operator's affair, unless they give a worker its own dead letters, which it acknowledges, and which a
// work-queue stream deletes then.
func TestWorker_FilterThatWouldHaveDeadLettersDeletedEndsTheRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("jobs.dead")
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "jobs", Subjects: []string{"jobs.>"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	filter := func(subjects ...string) *looked {
		cons, err := r.js.CreateOrUpdateConsumer(t.Context(), "jobs", jetstream.ConsumerConfig{
			Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: subjects})
		if err != nil {
			t.Fatal(err)
		}
		return &looked{Consumer: cons}
	}
	consumer := filter("jobs.a", "jobs.b")
	r.cons = consumer
	w := r.worker(succeed)
	w.LookEvery(lookEvery)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(context.Background()) }()
	filter("jobs.a", "jobs.c")
	consumer.looksAgain(t)
	select {
	case err := <-ended:
		t.Fatalf("Run ended for filters without the dead letters: %v", err)
	default:
	}
	filter("jobs.a", "jobs.dead")
	var wrong *dedupstore.SetupError
	if err := await(t, ended); !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Subject, "FilterSubjects"+" of consumer ") {
		t.Errorf("Run: %v, want a SetupError about FilterSubjects", err)
	}
}
