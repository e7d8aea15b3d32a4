package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

var errDeclined = oncemill.Permanent(errors.New("declined"))

// withDeadLetters gives the rig dead letters on a subject.
func (r *rig) withDeadLetters(topic string) *rig {
	r.t.Helper()
	pub, err := natsjs.NewPublisher(r.js, natsjs.PublisherConfig{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.dead = consumer.Config{DeadLetters: pub, DeadLetterTopic: topic}
	return r
}

// odd declines every second message, and everything that it does not know.
func odd(_ context.Context, msg jetstream.Msg) error {
	var n int
	if _, err := fmt.Sscanf(msg.Headers().Get(producer.HeaderID), "o%d", &n); err != nil || n%2 == 1 {
		return errDeclined
	}
	return nil
}

func TestWorker_RunsNothingForItsOwnDeadLetters(t *testing.T) {
	t.Parallel()
	const n = 20
	for name, c := range map[string]struct {
		topic  string
		filter string
		acks   int // of this consumer
		said   int
	}{
		"outside of what it consumes": {"orders.dead", "orders.all", n, 0},
		"among what it consumes":      {"orders.dead", "", n + n/2, n / 2},
		"among its filter":            {"orders.dead", "orders.*", n + n/2, n / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, jetstream.ConsumerConfig{FilterSubject: c.filter}).withDeadLetters(c.topic)
			r.publish(n, oneKey)
			stop := r.start(r.worker(odd))
			until(t, "all acks", func() bool {
				info := r.info()
				return info.NumAckPending == 0 && info.NumPending == 0 && info.AckFloor.Consumer == uint64(c.acks)
			})
			r.stops(stop)
			if _, runs := r.done(); runs != n {
				t.Errorf("%d runs of %d messages", runs, n)
			}
			stream, err := r.js.Stream(t.Context(), "orders")
			if err != nil {
				t.Fatal(err)
			}
			if got := stream.CachedInfo().State.Msgs; got != n+n/2 {
				t.Errorf("%d messages in the stream, want %d: the dead letters are kept", got, n+n/2)
			}
			log := r.log.String()
			if got := strings.Count(log, "own dead letter came back"); got != c.said {
				t.Errorf("said %d times, want %d", got, c.said)
			}
			if at := strings.Contains(log, "the consumer is given its own dead letters"); at != (c.said > 0) {
				t.Errorf("at the start it was said: %v", at)
			}

			// The intended consumer gets them.
			cons, err := r.js.CreateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{Durable: "undertaker", FilterSubject: "orders.dead", AckPolicy: jetstream.AckExplicitPolicy})
			if err != nil {
				t.Fatal(err)
			}
			once, err := consumer.New(r.store, consumer.Config{Group: "undertaker", Policy: oncemill.Policy{Logger: slog.New(slog.DiscardHandler)}})
			if err != nil {
				t.Fatal(err)
			}
			w, err := natsjs.NewWorker(once, r.js, cons, func(_ context.Context, msg jetstream.Msg) error {
				r.count(r.finished, msg.Headers().Get(producer.HeaderOriginalID))
				return nil
			}, natsjs.Config{Handler: "bury", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			stop = r.start(w)
			r.finishes(n)
			r.stops(stop)
		})
	}
}

func TestSource_RunsNothingForItsOwnDeadLetters(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("orders.dead")
	r.policy.MaxAttempts = 2
	r.publish(1, oneKey)
	once := r.processor()
	var runs atomic.Int32
	r.start(deciding{r.sourceOf(once), func(ctx context.Context, d consumer.Delivery) consumer.Decision {
		d.Handler = "charge"
		return once.Process(ctx, d, func(context.Context) error { runs.Add(1); return errors.New("not yet") })
	}})
	r.acked(2)
	if n := runs.Load(); n != 2 {
		t.Errorf("%d runs, want the two attempts", n)
	}
}

func TestWorker_DeadLettersThatAWorkQueueWouldDeleteAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("jobs.dead")
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "jobs", Subjects: []string{"jobs.>"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		filters []string
		field   string
	}{
		{nil, "FilterSubject, which is empty,"},
		{[]string{"jobs.*"}, "FilterSubject"},
		{[]string{"jobs.a", "jobs.dead"}, "FilterSubjects"},
		{[]string{"jobs.a", "jobs.*.dead", "jobs.dead.>"}, ""},
	} {
		config := jetstream.ConsumerConfig{Durable: fmt.Sprint("c", i), AckPolicy: jetstream.AckExplicitPolicy, FilterSubjects: c.filters}
		if len(c.filters) == 1 {
			config.FilterSubject, config.FilterSubjects = c.filters[0], nil
		}
		var err error
		if r.cons, err = r.js.CreateConsumer(t.Context(), "jobs", config); err != nil {
			t.Fatal(err)
		}
		source, err := natsjs.NewSource(r.processor(), r.js, natsjs.SourceConfig{
			Consumer: func(context.Context, string) (jetstream.Consumer, error) { return r.cons, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		for who, err := range map[string]error{"worker": r.worker(succeed).Check(t.Context()), "source": source.Check(t.Context(), "jobs")} {
			var wrong *dedupstore.SetupError
			if c.field == "" && err != nil || c.field != "" && (!errors.As(err, &wrong) || !strings.HasPrefix(wrong.Subject, c.field+" of consumer ")) {
				t.Errorf("%v, %s: %v, want an error about %q", c.filters, who, err, c.field)
			}
		}
		if err := r.js.DeleteConsumer(t.Context(), "jobs", config.Durable); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRun_DeadLetterTopicWithoutAStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("nowhere.dead")
	handle := func(context.Context, consumer.Delivery) consumer.Decision {
		return consumer.Decision{Action: consumer.Ack}
	}
	for who, err := range map[string]error{
		"Worker.Check": r.worker(succeed).Check(t.Context()), "Worker.Run": r.worker(succeed).Run(t.Context()),
		"Source.Check": r.source().Check(t.Context(), "orders"),
		"Source.Run":   r.source().Run(t.Context(), "orders", consumertest.Blocking(handle)),
	} {
		var missing *dedupstore.SetupError
		if !errors.As(err, &missing) || missing.Subject != `DeadLetterTopic "nowhere.dead"` ||
			!errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("%s: %v, want a SetupError that names the topic", who, err)
		}
	}
	dead := jetstream.StreamConfig{Name: "dead", Subjects: []string{"nowhere.*"}}
	if _, err := r.js.CreateStream(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	if err := r.worker(succeed).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSource_DeadLetterTopicThatKeepsNothingIsSaidAtTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("letters.dead")
	said := func(what string, want int) {
		t.Helper()
		if err := r.source().Check(t.Context(), "orders"); err != nil {
			t.Error(err)
		}
		if log := r.log.String(); strings.Count(log, what) != want {
			t.Errorf("want %q %d times:\n%s", what, want, log)
		}
	}
	dead := jetstream.StreamConfig{Name: "letters", Subjects: []string{"letters.>"}, Retention: jetstream.InterestPolicy}
	if _, err := r.js.CreateStream(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	const gone = `level=ERROR msg="natsjs: the stream of DeadLetterTopic keeps only what a consumer of it wants`
	said(gone, 1)
	if _, err := r.js.CreateConsumer(t.Context(), "letters", jetstream.ConsumerConfig{Durable: "all", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	said(gone, 1)
	said("DeadLetterTopic", 1)
}

// A stream with retention interest acknowledges a dead letter, and deletes it, if nobody consumes its subject.
func TestWorker_DeadLetterTopicWhoseStreamKeepsNothingIsSaidAtTheStart(t *testing.T) {
	t.Parallel()
	const said = "dead letters are gone at once"
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("letters.dead")
	dead := jetstream.StreamConfig{Name: "letters", Subjects: []string{"letters.>"}, Retention: jetstream.InterestPolicy}
	stream, err := r.js.CreateStream(t.Context(), dead)
	if err != nil {
		t.Fatal(err)
	}
	consume := func(name, filter string) {
		t.Helper()
		_, err := r.js.CreateConsumer(t.Context(), "letters", jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: filter})
		if err != nil {
			t.Fatal(err)
		}
	}
	consume("of_others", "letters.alive")
	stop := r.start(r.worker(odd))
	r.publish(2, oneKey)
	r.acked(2)
	r.stops(stop)
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.LastSeq != 1 || info.State.Msgs != 0 {
		t.Errorf("%+v, want a dead letter that was deleted", info.State)
	}
	if log := r.log.String(); strings.Count(log, said) != 1 || !strings.Contains(log, "level=ERROR") {
		t.Errorf("log:\n%s", log)
	}
	consume("of_all", "")
	if err := r.worker(odd).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if log := r.log.String(); strings.Count(log, said) != 1 {
		t.Errorf("said although there is a consumer:\n%s", log)
	}
}

// The maker of dead letters acknowledges those that come back. A stream with retention interest deletes a message once
// everybody who wanted it has acknowledged it.
func TestWorker_DeadLettersThatOnlyTheirMakerWantsAreSaidAtTheStart(t *testing.T) {
	t.Parallel()
	const said = "dead letters are gone at once"
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("jobs.dead")
	stream, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "jobs", Subjects: []string{"jobs.>"}, Retention: jetstream.InterestPolicy})
	if err != nil {
		t.Fatal(err)
	}
	consume := func(name string) jetstream.Consumer {
		t.Helper()
		cons, err := r.js.CreateConsumer(t.Context(), "jobs", jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		return cons
	}
	r.cons = consume("billing")
	stop := r.start(r.worker(odd))
	message := nats.NewMsg("jobs.a")
	message.Header.Set(producer.HeaderID, "o1")
	if _, err := r.js.PublishMsg(t.Context(), message); err != nil {
		t.Fatal(err)
	}
	until(t, "the dead letter to be deleted", func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.LastSeq == 2 && info.State.Msgs == 0
	})
	r.stops(stop)
	if log := r.log.String(); strings.Count(log, said) != 1 {
		t.Errorf("log:\n%s", log)
	}
	consume("undertaker")
	if err := r.worker(odd).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if log := r.log.String(); strings.Count(log, said) != 1 {
		t.Errorf("said although another consumer wants them:\n%s", log)
	}
}

// A publisher to another system.
type elsewhere struct{ producer.Publisher }

func (elsewhere) MessagingSystem() string { return "kafka" }

func TestWorker_DeadLettersOfAnotherSystemAreNotLookedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	r.dead = consumer.Config{DeadLetters: elsewhere{}, DeadLetterTopic: "orders.dead"}
	if err := r.worker(succeed).Check(t.Context()); err != nil || strings.Contains(r.log.String(), "dead letters") {
		t.Errorf("%v, log:\n%s", err, r.log.String())
	}
}

func TestWorker_BeginningWithoutDeadLettersIsAWarning(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{})
	stop := r.start(r.worker(succeed))
	r.publish(1, oneKey)
	r.finishes(1)
	r.stops(stop)
	if log := r.log.String(); strings.Count(log, "no consumer.Config.DeadLetters") != 1 || !strings.Contains(log, "level=WARN") {
		t.Errorf("log:\n%s", log)
	}
}

// The documentation of ErrCutShort says this about policies that park.
func TestWorker_RunThatGraceCutsShortIsUnknownWhereThePolicyParks(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}).withDeadLetters("orders.dead")
	r.policy = oncemill.Irreversible()
	r.config.Grace = time.Millisecond
	r.publish(1, oneKey)
	stop := r.start(r.worker(func(ctx context.Context, _ jetstream.Msg) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	until(t, "a run", func() bool { _, runs := r.done(); return runs == 1 })
	if err := stop(); !errors.Is(err, natsjs.ErrCutShort) {
		t.Fatalf("Run: %v", err)
	}
	stream, err := r.js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	stop = r.start(r.worker(succeed)) // its message comes again, and does not run
	var letter *jetstream.RawStreamMsg
	until(t, "the dead letter", func() bool {
		letter, err = stream.GetLastMsgForSubject(t.Context(), "orders.dead")
		return err == nil
	})
	r.acked(2)
	r.stops(stop)
	if _, runs := r.done(); runs != 1 {
		t.Errorf("%d runs", runs)
	}
	if outcome := letter.Header.Get(producer.HeaderOutcome); outcome != string(dedupstore.Unknown) {
		t.Errorf("outcome %q, want unknown", outcome)
	}
}
