package names_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// A bench is an SDK in memory.
type bench struct {
	telemetry.Providers
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer trace.Tracer // of the user
}

func newBench() *bench {
	b := &bench{reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans))
	b.Providers = telemetry.Providers{
		TracerProvider: provider, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(b.reader)), Propagator: propagation.TraceContext{},
	}
	b.tracer = provider.Tracer("test")
	return b
}

// points returns what a metric counted, or how often it was recorded, by the values of an attribute.
func (b *bench) points(t testing.TB, name, attribute string) map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := b.reader.Collect(context.Background(), &data); err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					v, _ := p.Attributes.Value(attributeKey(attribute))
					found[v.AsString()] += p.Value
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					v, _ := p.Attributes.Value(attributeKey(attribute))
					found[v.AsString()] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					v, _ := p.Attributes.Value(attributeKey(attribute))
					found[v.AsString()] += int64(p.Count)
				}
			default:
				t.Fatalf("%s is a %T", name, d)
			}
		}
	}
	return found
}

func (b *bench) meter(t testing.TB) *telemetry.Meter {
	t.Helper()
	m, err := telemetry.NewMeter(b.Providers, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (b *bench) consumer(t testing.TB) *telemetry.Consumer {
	t.Helper()
	c, err := telemetry.NewConsumer(b.Providers)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClaim_CountsAndLinksADuplicateToTheRun(t *testing.T) {
	t.Parallel()
	b := newBench()
	meter := b.meter(t)
	first, work := b.tracer.Start(t.Context(), "work")
	meter.Claim(first, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed, Attempt: 1, Fence: 42})
	origin := telemetry.Traceparent(first)
	work.End()

	second, duplicate := b.tracer.Start(t.Context(), "duplicate")
	meter.Claim(second, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.DuplicateCompleted, Age: time.Minute})
	telemetry.LinkOriginal(second, "billing", "charge", "m1", origin)
	telemetry.LinkOriginal(second, "billing", "charge", "m1", "")
	telemetry.LinkOriginal(second, "billing", "charge", "m1", "garbage")
	duplicate.End()

	span := b.spans.Ended()[1]
	if links := span.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != work.SpanContext().SpanID() {
		t.Errorf("links %v, want one to the run that did the work", links)
	}
	got := b.points(t, "oncemill.claims", "oncemill.outcome")
	if len(got) != 2 || got["claimed"] != 1 || got["duplicate_completed"] != 1 {
		t.Errorf("claims by outcome: %v", got)
	}
	if got := b.points(t, "oncemill.duplicate.delay", "oncemill.duplicate.cause"); len(got) != 1 || got["unknown"] != 1 {
		t.Errorf("delays of duplicates by cause: %v, want one whose cause is unknown", got)
	}
}

func TestInject_KeepsTheFirstStamp(t *testing.T) {
	t.Parallel()
	b := newBench()
	first, _ := b.tracer.Start(telemetry.WithPropagator(t.Context(), b.Propagator), "first")
	second, _ := b.tracer.Start(telemetry.WithPropagator(t.Context(), b.Propagator), "second")
	origin := telemetry.Traceparent(first)
	header := map[string]string{"Baggage": "user=1"}
	telemetry.Inject(first, header)
	if header["traceparent"] != origin || len(origin) != 55 {
		t.Errorf("injected %v, want %q", header, origin)
	}
	telemetry.Inject(second, header)
	if header["traceparent"] != origin {
		t.Error("a second stamp replaced the first one's trace context")
	}
	foreign := map[string]string{"Traceparent": "of another client's spelling"}
	if telemetry.Inject(first, foreign); len(foreign) != 1 {
		t.Errorf("injected beside %v", foreign)
	}
	if got := telemetry.Traceparent(t.Context()); got != "" {
		t.Errorf("traceparent %q without a span", got)
	}
}

// A guard that a handler uses for something else speaks of that, and not on the span of the handler's delivery.
func TestClaim_OfAnotherKeyLeavesTheDeliverysSpanAlone(t *testing.T) {
	t.Parallel()
	b := newBench()
	ctx, p := b.consumer(t).Begin(t.Context(), incoming("m1"))
	meter := b.meter(t)
	meter.Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed, Attempt: 1})
	meter.Claim(ctx, "billing", "mail", "m1", &telemetry.Answer{Outcome: telemetry.DuplicateFailed})
	telemetry.LinkOriginal(ctx, "billing", "mail", "m1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	p.End("ack", telemetry.NoFailure, nil)
	if got := attributes(b.spans.Ended()[0])["oncemill.outcome"]; got != "claimed" {
		t.Errorf("the delivery's outcome is %q, want claimed", got)
	}
	if links := b.spans.Ended()[0].Links(); len(links) != 0 {
		t.Errorf("the delivery's span has links %v", links)
	}
	if got := b.points(t, "oncemill.claims", "messaging.destination.name"); got["orders"] != 1 || got[""] != 1 {
		t.Errorf("claims by destination: %v, want one of the delivery and one without", got)
	}
}

func incoming(id string) *telemetry.Incoming {
	return &telemetry.Incoming{
		Group: "billing", Handler: "charge", System: "nats", Destination: "orders", Topic: "orders.eu", Origin: "orders",
		ID: id, KeySource: "message_id", Cause: telemetry.ProducerRetry,
	}
}

func attributes(span sdktrace.ReadOnlySpan) map[string]string {
	found := map[string]string{}
	for _, a := range span.Attributes() {
		found[string(a.Key)] = a.Value.String()
	}
	return found
}

func TestBegin_TakesTheParentThatTheModeSays(t *testing.T) {
	t.Parallel()
	const created = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	const trace_ = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, tc := range []struct {
		name          string
		outside, link bool
		header        map[string]string
		inMessages    bool // the span is part of the message's trace
		links         int
	}{
		{name: "the message's", header: map[string]string{"traceparent": created}, inMessages: true, links: 1},
		{name: "the message's, in another spelling", header: map[string]string{"Traceparent": created}, inMessages: true, links: 1},
		{name: "one of its own", link: true, header: map[string]string{"traceparent": created}, links: 1},
		{name: "a middleware's outside", outside: true, header: map[string]string{"traceparent": created}, links: 1},
		{name: "a middleware's outside, of a message without", outside: true},
		{name: "a message without"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench()
			ctx := t.Context()
			var parent trace.SpanID
			if tc.outside {
				var span trace.Span
				ctx, span = b.tracer.Start(ctx, "middleware")
				parent = span.SpanContext().SpanID()
			}
			in := incoming("m1")
			in.Header, in.Link = tc.header, tc.link
			_, p := b.consumer(t).Begin(ctx, in)
			p.End("ack", telemetry.NoFailure, nil)
			span := b.spans.Ended()[0]
			if got := span.SpanContext().TraceID().String() == trace_; got != tc.inMessages {
				t.Errorf("in the message's trace: %t, want %t", got, tc.inMessages)
			}
			if tc.outside && span.Parent().SpanID() != parent {
				t.Error("the parent is not the middleware's span")
			}
			if len(span.Links()) != tc.links {
				t.Errorf("links %v, want %d", span.Links(), tc.links)
			}
			if span.Name() != "process orders" || span.SpanKind() != trace.SpanKindConsumer {
				t.Errorf("span %q of kind %v", span.Name(), span.SpanKind())
			}
		})
	}
}

// Beyond the bound, metrics do not tell deliveries apart; their spans do.
func TestSources_BeyondTheBoundSpansSayAllTheSame(t *testing.T) {
	t.Parallel()
	b := newBench()
	c, meter := b.consumer(t), b.meter(t)
	for i := range 1100 {
		in := incoming("m1")
		in.Destination = strings.Repeat("x", 1+i)
		ctx, p := c.Begin(t.Context(), in)
		meter.Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.DuplicateCompleted})
		if i == 1099 {
			p.Count(ctx, &telemetry.Answer{Outcome: telemetry.Rejected})
		}
		p.End("ack", telemetry.NoFailure, nil)
	}
	last := attributes(b.spans.Ended()[1099])
	if last["oncemill.outcome"] != "rejected" || last["oncemill.duplicate.cause"] != "producer_retry" ||
		last["messaging.system"] != "nats" || last["oncemill.handler"] != "charge" {
		t.Errorf("the last span: %v", last)
	}
	if got := b.points(t, "oncemill.claims", "messaging.destination.name"); got["_OTHER"] != 101 || got[""] != 0 {
		t.Errorf("claims: %d of the rest, %d of no destination; want 101 and none", got["_OTHER"], got[""])
	}
	if got := b.points(t, "oncemill.duplicate.delay", "oncemill.duplicate.cause"); got["producer_retry"] != 1100 {
		t.Errorf("duplicates by cause: %v", got)
	}
}

// If somebody uses names without end, one series counts the rest.
func TestSources_AreBounded(t *testing.T) {
	t.Parallel()
	b := newBench()
	c, meter := b.consumer(t), b.meter(t)
	for i := range 1100 {
		in := incoming("m1")
		in.Destination = strings.Repeat("x", 1+i)
		ctx, p := c.Begin(t.Context(), in)
		meter.Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed})
		p.Ran(ctx, p.Run(), telemetry.NoFailure)
	}
	got := b.points(t, "messaging.process.duration", "messaging.destination.name")
	if len(got) != 1001 || got["_OTHER"] != 100 {
		t.Errorf("%d destinations, %d deliveries in the rest; want 1001 and 100", len(got), got["_OTHER"])
	}
}

func TestConsumer_ShowsHandlersAtWork(t *testing.T) {
	t.Parallel()
	b := newBench()
	c := b.consumer(t)
	ctx, p := c.Begin(t.Context(), incoming("m1"))
	began := p.Run()
	if got := b.points(t, "oncemill.handler.active", "oncemill.handler"); got["charge"] != 1 {
		t.Errorf("while one works: %v", got)
	}
	p.Ran(ctx, began, telemetry.FailedPermanently)
	if got := b.points(t, "oncemill.handler.active", "oncemill.handler"); got["charge"] != 0 {
		t.Errorf("afterwards: %v", got)
	}
	if got := b.points(t, "messaging.process.duration", "error.type"); got["permanent"] != 1 {
		t.Errorf("runs by error: %v", got)
	}
	if !c.On(ctx) { // and keeps the consumer, whose gauge ends with it
		t.Error("nobody wants to know")
	}
}

func TestExemplars_HoldTheDeliverysTrace(t *testing.T) {
	t.Parallel()
	b := newBench()
	ctx, p := b.consumer(t).Begin(t.Context(), incoming("m1"))
	b.meter(t).Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.DuplicateCompleted})
	p.End("ack", telemetry.NoFailure, nil)
	var data metricdata.ResourceMetrics
	if err := b.reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	want := b.spans.Ended()[0].SpanContext().TraceID()
	for _, m := range data.ScopeMetrics[0].Metrics {
		if m.Name != "oncemill.claims" {
			continue
		}
		examples := m.Data.(metricdata.Sum[int64]).DataPoints[0].Exemplars
		if len(examples) != 1 || !bytes.Equal(examples[0].TraceID, want[:]) {
			t.Errorf("exemplars %v, want one of the delivery's trace", examples)
		}
		return
	}
	t.Error("no claims were counted")
}
