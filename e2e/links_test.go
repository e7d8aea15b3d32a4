package e2e_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A leg is a broker, from the publisher that a relay has to a guarded handler.
type leg struct {
	name    string
	runs    *atomic.Int64
	publish producer.Publisher
}

// A duplicate's span links to the run that did the work, in the trace that began where the order was placed. The link
// crosses the outbox, the relay, JetStream and Kafka.
func TestLinks_ADuplicateLeadsToTheTraceOfTheOriginalRun(t *testing.T) {
	eachLeg(t, func(t *testing.T) traceStore { return newReceiver(t) })
}

// The same, through a real Jaeger and its API.
func TestJaeger_ADuplicateLeadsToTheTraceOfTheOriginalRun(t *testing.T) {
	eachLeg(t, func(t *testing.T) traceStore { return startJaeger(t) })
}

func eachLeg(t *testing.T, newStore func(*testing.T) traceStore) {
	for name, start := range map[string]func(*testing.T) leg{"JetStream": overJetStream, "Kafka": overKafka} {
		t.Run(name, func(t *testing.T) {
			store := newStore(t)
			sendSpansTo(t, store)
			follow(t, store, start(t))
		})
	}
}

// sendSpansTo exports the spans of this process until the test ends.
func sendSpansTo(t *testing.T, store traceStore) {
	t.Helper()
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(store.endpoint()+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	sending := trace.NewBatchSpanProcessor(exporter, trace.WithBatchTimeout(50*time.Millisecond))
	tracing.RegisterSpanProcessor(sending)
	t.Cleanup(func() {
		tracing.UnregisterSpanProcessor(sending) // and shuts it down
	})
}

// follow places an order, publishes it once more past the outbox, and follows the spans.
func follow(t *testing.T, store traceStore, l leg) {
	t.Helper()
	rows, place := newOutbox(t)
	runRelay(t, rows, l.publish)
	order := producer.Message{ID: producer.NewID(), Topic: "orders", Payload: []byte("x")}

	ctx, placing := otel.Tracer("e2e").Start(t.Context(), "place order")
	if err := place(ctx, order); err != nil {
		t.Fatal(err)
	}
	placing.End()
	until(t, 3*time.Minute, "the order to be handled", func() bool { return l.runs.Load() > 0 })
	ctx, again := otel.Tracer("e2e").Start(t.Context(), "retry")
	if err := l.publishAgain(ctx, order); err != nil {
		t.Fatal(err)
	}
	again.End()
	original, duplicate := placing.SpanContext().TraceID().String(), again.SpanContext().TraceID().String()

	// From the order to the run there is one chain; the relay's sending is a side branch.
	chain := []string{"process orders", "create orders", "place order"}
	var run, repeated *span
	until(t, 3*time.Minute, "the spans of the run, of what led to it, and of the duplicate", func() bool {
		spans := store.trace(t, original)
		run = processing(spans, "claimed")
		repeated = processing(store.trace(t, duplicate), "duplicate_completed")
		return repeated != nil && slices.Equal(path(spans, run), chain) && slices.ContainsFunc(spans, func(s span) bool {
			return s.name == "send orders" && slices.Equal(path(spans, &s)[1:], chain[1:])
		})
	})
	if l.runs.Load() != 1 {
		t.Errorf("the handler ran %d times", l.runs.Load())
	}
	if !slices.ContainsFunc(repeated.links, func(to link) bool {
		return to.trace == original && to.id == run.id && (to.kind == "original_attempt" || to.kind == "")
	}) {
		t.Errorf("the duplicate's span has the links %+v, want one to the run %s in the trace %s", repeated.links, run.id, original)
	}
	t.Logf("the duplicate %s/%s links to the run %s/%s", duplicate, repeated.id, original, run.id)
}

// path are the names of a span and of those above it.
func path(spans []span, s *span) (names []string) {
	for ; s != nil; s = byID(spans, s.parent) {
		names = append(names, s.name)
	}
	return names
}

// publishAgain makes a copy that the broker does not recognise: the retry of another producer.
func (l leg) publishAgain(ctx context.Context, m producer.Message) error {
	if l.name == "JetStream" { // whose publisher gives equal messages equal IDs at the broker
		m.Header = producer.Header{producer.HeaderPurpose: producer.PurposeReplay}
	}
	return l.publish.Publish(ctx, m)
}

func processing(spans []span, outcome string) *span {
	i := slices.IndexFunc(spans, func(s span) bool { return s.attributes["oncemill.outcome"] == outcome })
	if i < 0 {
		return nil
	}
	return &spans[i]
}

func byID(spans []span, id string) *span {
	i := slices.IndexFunc(spans, func(s span) bool { return id != "" && s.id == id })
	if i < 0 {
		return nil
	}
	return &spans[i]
}

func newLeg(t *testing.T, name string) (leg, *consumer.Processor) {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	once, err := consumer.New(store, consumer.Config{Group: "billing", Policy: oncemill.Policy{Logger: quiet}})
	if err != nil {
		t.Fatal(err)
	}
	return leg{name: name, runs: new(atomic.Int64)}, once
}

func overJetStream(t *testing.T) leg {
	l, once := newLeg(t, "JetStream")
	js := natstest.Start(t).JetStream()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	cons, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	worker, err := natsjs.NewWorker(once, js, cons, func(context.Context, jetstream.Msg) error {
		l.runs.Add(1)
		return nil
	}, natsjs.Config{Handler: "charge", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	work(t, worker.Run)
	if l.publish, err = natsjs.NewPublisher(js, natsjs.PublisherConfig{Logger: quiet}); err != nil {
		t.Fatal(err)
	}
	return l
}

func overKafka(t *testing.T) leg {
	l, once := newLeg(t, "Kafka")
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	worker, err := franz.NewWorker(once, func(context.Context, *kgo.Record) error {
		l.runs.Add(1)
		return nil
	}, franz.Config{Handler: "charge", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(append(worker.Opts(), kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumerGroup("billing"),
		kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	work(t, func(ctx context.Context) error { return worker.Run(ctx, cl) })
	sender, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sender.Close)
	if l.publish, err = franz.NewPublisher(sender, franz.PublisherConfig{}); err != nil {
		t.Fatal(err)
	}
	return l
}

// work runs a worker until the test ends.
func work(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the worker: %v", err)
		}
	})
}
