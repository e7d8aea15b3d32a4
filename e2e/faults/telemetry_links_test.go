package faults_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A broker of the test takes messages, and has a processor handle them until stop is called.
type tracedBroker struct {
	publisher producer.Publisher
	stop      func()
}

func TestTelemetry_ADuplicateLinksToTheRun_JetStream(t *testing.T) {
	t.Parallel()
	duplicatesLink(t, "nats", func(o *observatory, once *consumer.Processor, handle consumer.Handler) tracedBroker {
		js := natstest.Start(t).JetStream()
		// Without much memory of IDs, so that copies are seen.
		stream := jetstream.StreamConfig{Name: ordersStream, Subjects: []string{ordersStream}, Duplicates: 100 * time.Millisecond, MaxAge: time.Hour}
		createStream(t, js, stream)
		cons, err := js.CreateOrUpdateConsumer(t.Context(), ordersStream, jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		publisher, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{Telemetry: o.Telemetry})
		if err != nil {
			t.Fatal(err)
		}
		w, err := natsjs.NewWorker(once, js, cons, func(ctx context.Context, _ jetstream.Msg) error { return handle(ctx) },
			natsjs.Config{Handler: "charge", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return tracedBroker{publisher, background(t, w.Run)}
	})
}

func TestTelemetry_ADuplicateLinksToTheRun_Kafka(t *testing.T) {
	t.Parallel()
	duplicatesLink(t, "kafka", func(o *observatory, once *consumer.Processor, handle consumer.Handler) tracedBroker {
		k := fakeKafka(t)
		k.createTopic(t, kadm.NewClient(k.client(t)), ordersStream, 1)
		publisher, err := franz.NewPublisher(k.client(t, franz.PublisherOpts()...), franz.PublisherConfig{Telemetry: o.Telemetry})
		if err != nil {
			t.Fatal(err)
		}
		w, err := franz.NewWorker(once, func(ctx context.Context, _ *kgo.Record) error { return handle(ctx) },
			franz.Config{Handler: "charge", Logger: slog.New(slog.DiscardHandler), Grace: kafkaGrace})
		if err != nil {
			t.Fatal(err)
		}
		cl := k.client(t, append(w.Opts(), kafkaMemberOpts(k.addr, "billing", ordersStream)...)...)
		return tracedBroker{publisher, background(t, func(ctx context.Context) error { return w.Run(ctx, cl) })}
	})
}

// background runs something until the function that it returns is called, or the test ends.
func background(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	var stopped atomic.Bool
	stop = func() {
		if cancel(); !stopped.Swap(true) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

// forgetful loses the acknowledgements of its first call.
type forgetful struct {
	producer.Publisher
	calls atomic.Int64
}

var errForgotten = errors.New("the acknowledgement is lost")

func (f *forgetful) Publish(ctx context.Context, messages ...producer.Message) error {
	err := f.Publisher.Publish(ctx, messages...)
	if f.calls.Add(1) == 1 && err == nil {
		return errForgotten
	}
	return err
}

func (f *forgetful) MessagingSystem() string { return outbox.SystemOf(f.Publisher) }

// duplicatesLink writes a message within a span and has a relay send it three times: the second time because no
// acknowledgement came, the third time because it is told to. Then it looks at the traces.
func duplicatesLink(t *testing.T, system string, start func(*observatory, *consumer.Processor, consumer.Handler) tracedBroker) {
	o := newObservatory(t)
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	once, err := consumer.New(store, consumer.Config{Group: "billing", Policy: oncemill.Policy{
		Telemetry: o.Telemetry, Logger: slog.New(slog.DiscardHandler),
	}})
	if err != nil {
		t.Fatal(err)
	}
	var within atomic.Value // the run's span
	b := start(o, once, func(ctx context.Context) error {
		within.Store(trace.SpanContextFromContext(ctx))
		return nil
	})

	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "outbox.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	publisher := &forgetful{Publisher: b.publisher}
	relay, err := outbox.NewRelay(box, publisher, outbox.Config{
		Telemetry: o.Telemetry, Logger: slog.New(slog.DiscardHandler), Backoff: oncemill.Backoff{Min: 300 * time.Millisecond}, PollInterval: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, checkout := o.TracerProvider.Tracer("shop").Start(producer.WithPropagator(t.Context(), o.Propagator), "checkout")
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := box.InSQL(tx).Publish(ctx, producer.Message{ID: "order-1", Topic: ordersStream, Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	checkout.End()

	stopRelay := background(t, relay.Run)
	process := func() []sdktrace.ReadOnlySpan { return o.named("process " + ordersStream) }
	until(t, "the resend", func() bool { return len(process()) >= 2 })
	until(t, "the row to be published, and replayed", func() bool {
		n, err := box.Replay(t.Context(), outbox.ReplayRequest{Before: time.Now().Add(time.Hour), Limit: 1})
		return err == nil && n == 1
	})
	until(t, "the replay", func() bool {
		return slices.ContainsFunc(process(), func(s sdktrace.ReadOnlySpan) bool { return attributeOf(s, "oncemill.duplicate.cause") == "operator" })
	})
	stopRelay()
	b.stop()

	spans := process()
	run := spans[0]
	if !run.SpanContext().Equal(within.Load().(trace.SpanContext)) {
		t.Error("the handler's context does not have the process span")
	}
	created := o.named("create " + ordersStream)
	if len(created) != 1 || created[0].Parent().SpanID() != checkout.SpanContext().SpanID() {
		t.Fatalf("%d spans of the message's creation, want one, within the checkout", len(created))
	}
	sends := o.named("send " + ordersStream)
	calls := int(publisher.calls.Load()) // three, on a machine that is not slow
	if len(sends) != calls {
		t.Errorf("%d sends in %d calls: want those of the relay only", len(sends), calls)
	}
	for i, send := range sends {
		if send.Parent().SpanID() != created[0].SpanContext().SpanID() || len(linksOf(send, "creation")) != 1 || attributeOf(send, "messaging.system") != system {
			t.Errorf("send %d: parent %v, links %v, attributes %v", i, send.Parent().SpanID(), send.Links(), send.Attributes())
		}
	}
	if sends[0].Status().Code != codes.Error || sends[1].Status().Code == codes.Error {
		t.Errorf("sends ended %v and %v, want an error and none", sends[0].Status(), sends[1].Status())
	}
	causes := map[string]int{}
	for i, span := range spans {
		causes[attributeOf(span, "oncemill.duplicate.cause")]++
		original := linksOf(span, "original_attempt")
		outcome := "duplicate_completed"
		switch {
		case i == 0:
			outcome = "claimed"
			if len(original) != 0 {
				t.Errorf("the run links to %v", original)
			}
		case len(original) != 1 || original[0].SpanContext.SpanID() != run.SpanContext().SpanID() || original[0].SpanContext.TraceID() != run.SpanContext().TraceID():
			t.Errorf("duplicate %d links to %v, want the run, %v", i, original, run.SpanContext())
		}
		if attributeOf(span, "oncemill.outcome") != outcome {
			t.Errorf("delivery %d: %v", i, span.Attributes())
		}
		if span.Parent().SpanID() != created[0].SpanContext().SpanID() || span.SpanContext().TraceID() != checkout.SpanContext().TraceID() {
			t.Errorf("delivery %d is not in the trace of the checkout", i)
		}
		if span.Status().Code != codes.Unset || span.SpanKind() != trace.SpanKindConsumer || attributeOf(span, "messaging.message.id") != "order-1" {
			t.Errorf("delivery %d: status %v, kind %v, %v", i, span.Status(), span.SpanKind(), span.Attributes())
		}
	}
	if causes[""] != 1 || causes["relay_resend"] == 0 || causes["operator"] == 0 {
		t.Errorf("causes: %v, want a resend and a replay", causes)
	}
	if got := o.counted("messaging.client.sent.messages", "error.type"); got[""]+got["unknown"] != calls || got["unknown"] == 0 {
		t.Errorf("sent messages by error: %v", got)
	}
	if got := o.counted("oncemill.outbox.relay.lag", "messaging.system"); got[system] == 0 || got[system] > calls-2 {
		t.Errorf("relay lags: %v in %d calls; want none of the replay, and none without an acknowledgement", got, calls)
	}
}
