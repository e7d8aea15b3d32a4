package names_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/webhook"
)

func attributeKey(name string) attribute.Key { return attribute.Key(name) }

func TestRelay_SendsArePartOfTheirMessagesTraces(t *testing.T) {
	t.Parallel()
	b := newBench()
	relay, err := telemetry.NewRelay(b.Providers, "outbox", "kafka")
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
	if second.Parent().IsValid() || second.SpanContext().TraceID() == all.SpanContext().TraceID() ||
		second.SpanKind() != trace.SpanKindProducer || second.Status().Code != codes.Error {
		t.Errorf("the send of a message without begins a trace: parent %v, kind %v, status %v",
			second.Parent(), second.SpanKind(), second.Status())
	}
	if len(all.Links()) != 2 || all.Links()[1].SpanContext.SpanID() != second.SpanContext().SpanID() ||
		all.Name() != "oncemill.outbox.relay" {
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

// Subjects of NATS may have a customer in them: metrics have the stream that took the message, as soon as it is known.
func TestSends_OfSubjectsWithoutEndAreCountedByStream(t *testing.T) {
	t.Parallel()
	b := newBench()
	sender := newSender(t, b)
	relay, err := telemetry.NewRelay(b.Providers, "outbox", "nats")
	if err != nil {
		t.Fatal(err)
	}
	const n = 500
	within, batch := relay.Begin(t.Context(), n)
	for i := range n {
		batch.Send(within, subject(i), id(i), nil, time.Second)
	}
	for i := range n {
		_, alone := sender.Begin(t.Context(), subject(i), id(i), nil)
		_, relayed := sender.Begin(within, subject(i), id(i), nil)
		if i > 0 { // the stream refuses the first one
			sender.Landed(t.Context(), alone, subject(i), id(i), "ORDERS")
			sender.Landed(within, relayed, subject(i), id(i), "ORDERS")
		}
		alone.End(t.Context(), refusal(i), false)
	}
	for i := range n {
		batch.Sent(within, i, refusal(i), false)
	}
	batch.End(within, false)
	relay.Died(t.Context(), subject(0))

	for metric, want := range map[string]map[string]int64{
		"messaging.client.sent.messages":      {"ORDERS": 2 * (n - 1), "": 2},
		"messaging.client.operation.duration": {"ORDERS": n, "": 2}, // one for a relay's call
		"oncemill.outbox.relay.lag":           {"ORDERS": n - 1},
		"oncemill.outbox.deaths":              {"": 1},
	} {
		if diff := cmp.Diff(want, b.points(t, metric, "messaging.destination.name")); diff != "" {
			t.Errorf("%s by destination (-want +got):\n%s", metric, diff)
		}
	}
	span := b.spans.Ended()[0]
	if span.Name() != "send "+subject(0) || attributes(span)["messaging.destination.name"] != subject(0) {
		t.Errorf("span %q, %v", span.Name(), attributes(span))
	}
}

func subject(i int) string { return "orders.customer-" + id(i) }
func id(i int) string      { return strconv.Itoa(i) }

func refusal(i int) error {
	if i > 0 {
		return nil
	}
	return errors.New("no")
}

func TestSending_TakesTheTimeOfItsOwnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		_, sending := newSender(t, b).Begin(t.Context(), "orders", "m1", nil)
		<-time.After(100 * time.Millisecond)
		sending.Answered()
		<-time.After(time.Minute) // for others
		sending.End(t.Context(), nil, false)
		var data metricdata.ResourceMetrics
		if err := b.reader.Collect(t.Context(), &data); err != nil {
			t.Fatal(err)
		}
		for _, m := range data.ScopeMetrics[0].Metrics {
			if m.Name == "messaging.client.operation.duration" {
				if sum := m.Data.(metricdata.Histogram[float64]).DataPoints[0].Sum; sum != .1 {
					t.Errorf("it took %v s, want 0.1", sum)
				}
			}
		}
	})
}

// A panic in a relay would end the process, and the next one, too, that takes the row.
func TestRelay_WhatPanicsInTelemetryEndsNoRelay(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.Propagator = faulty{}
	relay, err := telemetry.NewRelay(b.Providers, "outbox", "kafka")
	if err != nil {
		t.Fatal(err)
	}
	sender := outgoing.Sender{Publisher: webhook.PublisherFunc(func(context.Context, ...producer.Message) error { return nil }),
		Telemetry: relay, Log: slog.New(slog.DiscardHandler)}
	with := producer.Header{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	for _, h := range []producer.Header{with, {"a": "b"}} {
		answers := sender.Send(t.Context(), []outgoing.Message{{Message: producer.Message{ID: "m1", Topic: "orders", Header: h}}})
		if len(answers) != 1 || answers[0].Err == nil || !answers[0].Unknown {
			t.Errorf("answers %+v, want one that is unknown", answers)
		}
	}
}
