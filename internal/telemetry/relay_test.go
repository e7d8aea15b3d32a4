package telemetry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/internal/telemetry"
)

func attributeKey(name string) attribute.Key { return attribute.Key(name) }

func TestRelay_SendsArePartOfTheirMessagesTraces(t *testing.T) {
	t.Parallel()
	b := newBench()
	relay, err := telemetry.NewRelay(b.Providers, "outbox", "nats")
	if err != nil {
		t.Fatal(err)
	}
	_, origin := b.tracer.Start(t.Context(), "business")
	created := map[string]string{}
	b.Propagator.Inject(trace.ContextWithSpan(t.Context(), origin), propagation.MapCarrier(created))

	within, batch := relay.Begin(t.Context(), 2)
	kept := batch.Send(within, "orders", "m1", created, time.Minute)
	stamped := batch.Send(within, "orders", "m2", nil, 0)
	if kept["traceparent"] != created["traceparent"] || stamped["traceparent"] == "" {
		t.Errorf("headers %v and %v: want the first as it was, the second stamped", kept, stamped)
	}
	if _, second := newSender(t, b).Begin(within, "orders", "m1", kept); second != nil {
		t.Error("the publisher observes what the relay does")
	}
	batch.Sent(within, 0, nil, false)
	batch.Sent(within, 1, errors.New("no"), true)
	batch.End(within, false)

	spans := b.spans.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want two sends and the batch", len(spans))
	}
	first, second, all := spans[0], spans[1], spans[2]
	if first.Parent().SpanID() != origin.SpanContext().SpanID() || len(first.Links()) != 1 || first.SpanKind() != trace.SpanKindClient {
		t.Errorf("the send of a message with a context: parent %v, links %v, kind %v", first.Parent(), first.Links(), first.SpanKind())
	}
	if second.Parent().SpanID() != all.SpanContext().SpanID() || second.SpanKind() != trace.SpanKindProducer || second.Status().Code != codes.Error {
		t.Errorf("the send of a message without: parent %v, kind %v, status %v", second.Parent(), second.SpanKind(), second.Status())
	}
	if len(all.Links()) != 1 || all.Name() != "oncemill.outbox.relay" {
		t.Errorf("the batch %q has links %v", all.Name(), all.Links())
	}
	if got := b.points(t, "messaging.client.sent.messages", "error.type"); got[""] != 1 || got["unknown"] != 1 {
		t.Errorf("sent: %v", got)
	}
	if got := b.points(t, "oncemill.outbox.relay.lag", "messaging.destination.name"); got["orders"] != 1 {
		t.Errorf("lags: %v, want one, of the message whose age is known", got)
	}
}

func newSender(t testing.TB, b *bench) *telemetry.Sender {
	t.Helper()
	s, err := telemetry.NewSender(b.Providers, "nats")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSender_StampsWithItsOwnSpanOrKeepsTheMessages(t *testing.T) {
	t.Parallel()
	b := newBench()
	sender := newSender(t, b)
	ctx, sending := sender.Begin(t.Context(), "orders", "m1", nil)
	header := map[string]string{}
	telemetry.Inject(ctx, header)
	sending.End(ctx, nil, false)
	sending.End(ctx, nil, false)
	_, again := sender.Begin(t.Context(), "orders", "m2", header)
	sender.Duplicate(t.Context(), again, "orders", "m2", true)
	again.End(ctx, nil, false)
	spans := b.spans.Ended()
	if len(spans) != 2 || spans[0].SpanKind() != trace.SpanKindProducer || spans[1].SpanKind() != trace.SpanKindClient {
		t.Fatalf("spans %v", spans)
	}
	if spans[1].Parent().SpanID() != spans[0].SpanContext().SpanID() || len(spans[1].Links()) != 1 {
		t.Errorf("a message that has a context: parent %v, links %v", spans[1].Parent(), spans[1].Links())
	}
	if attributes(spans[1])["oncemill.broker.duplicate"] != "true" {
		t.Error("the span does not say that the broker dropped the message")
	}
	if got := b.points(t, "oncemill.broker.duplicates", "oncemill.result"); got["unexpected"] != 1 {
		t.Errorf("duplicates of the broker: %v", got)
	}
}

func TestCreate_OnlyUnderASpanThatIsKept(t *testing.T) {
	t.Parallel()
	b := newBench()
	same, end := telemetry.Create(t.Context(), "orders", nil)
	end("m0")
	if same != t.Context() || len(b.spans.Ended()) != 0 {
		t.Error("a span of nobody's")
	}
	ctx, business := b.tracer.Start(telemetry.WithPropagator(t.Context(), b.Propagator), "business")
	created, end := telemetry.Create(ctx, "orders", nil)
	header := map[string]string{}
	telemetry.Inject(created, header)
	end("m1")
	if again, _ := telemetry.Create(ctx, "orders", header); again != ctx {
		t.Error("a message was created twice")
	}
	span := b.spans.Ended()[0]
	if span.Name() != "create orders" || span.Parent().SpanID() != business.SpanContext().SpanID() || attributes(span)["messaging.message.id"] != "m1" {
		t.Errorf("span %q, parent %v, attributes %v", span.Name(), span.Parent(), attributes(span))
	}
}

func TestWatch_ShowsRowsUntilItEnds(t *testing.T) {
	t.Parallel()
	b := newBench()
	relay, err := telemetry.NewRelay(b.Providers, "outbox", "nats")
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	stop, err := relay.Watch(func(context.Context) (telemetry.Stats, error) {
		asked++
		return telemetry.Stats{Pending: 7, Dead: 2, Oldest: time.Minute}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := b.points(t, "oncemill.outbox.pending", "oncemill.outbox.state"); got["pending"] != 7 || got["dead"] != 2 {
			t.Errorf("rows: %v", got)
		}
	}
	if asked != 1 {
		t.Errorf("the outbox was asked %d times in a moment, want once", asked)
	}
	stop()
	if got := b.points(t, "oncemill.outbox.pending", "oncemill.outbox.state"); len(got) != 0 {
		t.Errorf("rows after the end: %v", got)
	}
}
