package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
)

// traced returns a config whose spans are recorded.
func traced() (consumer.Config, *tracetest.SpanRecorder, trace.Tracer) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	c := consumer.Config{System: "rabbitmq", MaxWait: consumer.NoWait}
	c.Policy.Telemetry = oncemill.Telemetry{TracerProvider: provider, Propagator: propagation.TraceContext{}}
	return c, spans, provider.Tracer("outside")
}

func attributesOf(s sdktrace.ReadOnlySpan) map[string]string {
	found := map[string]string{}
	for _, a := range s.Attributes() {
		found[string(a.Key)] = a.Value.String()
	}
	return found
}

const messageTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

// Only an error looks like one.
func TestProcess_SpansShowOnlyErrorsAsErrors(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	c, spans, _ := traced()
	c.Policy.Backoff.Min = time.Hour
	p := newProcessor(t, newStore(t), c)
	last := func() sdktrace.ReadOnlySpan { all := spans.Ended(); return all[len(all)-1] }
	process := func(id, content string, handle consumer.Handler) sdktrace.ReadOnlySpan {
		d := delivery(id)
		d.Payload = []byte(content)
		if id == "" {
			d.Header = producer.Header{}
		}
		p.Process(t.Context(), d, handle)
		return last()
	}
	nothing := func(context.Context) error { return nil }
	for _, step := range []struct {
		name, id, content string
		handle            consumer.Handler
		outcome, failure  string
	}{
		{"a run", "ok", "x", nothing, "claimed", ""},
		{"a duplicate", "ok", "x", nothing, "duplicate_completed", ""},
		{"other content", "ok", "y", nothing, "fingerprint_mismatch", "mismatch"},
		{"a failure for good", "bad", "x", func(context.Context) error { return oncemill.Permanent(boom) }, "claimed", "permanent"},
		{"its duplicate", "bad", "x", nothing, "duplicate_failed", ""},
		{"a failure", "again", "x", func(context.Context) error { return boom }, "claimed", "_OTHER"},
		{"too early", "again", "x", nothing, "not_due", ""},
		{"a panic", "panics", "x", func(context.Context) error { panic(boom) }, "claimed", "panic"},
		{"no ID", "", "x", nothing, "", "rejected"},
	} {
		span := process(step.id, step.content, step.handle)
		got := attributesOf(span)
		if step.outcome != "" && got["oncemill.outcome"] != step.outcome {
			t.Errorf("%s: outcome %q, want %q", step.name, got["oncemill.outcome"], step.outcome)
		}
		if got["error.type"] != step.failure || (span.Status().Code == codes.Error) != (step.failure != "") {
			t.Errorf("%s: error.type %q, status %v; want %q", step.name, got["error.type"], span.Status(), step.failure)
		}
	}
	busy := make(chan sdktrace.ReadOnlySpan, 1)
	run := process("busy", "x", func(context.Context) error {
		busy <- process("busy", "x", nothing)
		return nil
	})
	if copied := <-busy; attributesOf(copied)["oncemill.outcome"] != "duplicate_in_progress" || copied.Status().Code != codes.Unset ||
		len(copied.Links()) != 1 || copied.Links()[0].SpanContext.SpanID() != run.SpanContext().SpanID() {
		t.Errorf("a copy of a running message: %v, %v, links %v; want one to the run", attributesOf(copied), copied.Status(), copied.Links())
	}
	for _, span := range spans.Ended()[1:3] {
		if attributesOf(span)["oncemill.outcome"] == "duplicate_completed" && len(span.Links()) != 1 {
			t.Errorf("a duplicate has links %v", span.Links())
		}
	}
}

func TestProcess_DuplicatesSayWhatMadeThem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cause  string
		count  int
		system string
		header producer.Header
	}{
		{"broker_redelivery", 2, "nats", nil},
		{"broker_redelivery", 2, "kafka", nil},
		{"producer_retry", 1, "nats", nil},
		{"unknown", 1, "kafka", nil}, // which counts only what its own source offers again
		{"unknown", 0, "", nil},
		{"relay_resend", 1, "nats", producer.Header{producer.HeaderResend: "1"}},
		{"relay_resend", 1, "kafka", producer.Header{producer.HeaderResend: "1"}},
		{"operator", 1, "nats", producer.Header{producer.HeaderPurpose: producer.PurposeReplay}},
		{"operator", 1, "nats", producer.Header{producer.HeaderRerun: "7"}},
		{"broker_redelivery", 2, "nats", producer.Header{producer.HeaderResend: "1"}},
	} {
		c, spans, _ := traced()
		p := newProcessor(t, newStore(t), c)
		for range 2 {
			d := delivery("o1")
			for name, value := range tc.header {
				d.Header[name] = value
			}
			d.Count, d.System = tc.count, tc.system
			p.Process(t.Context(), d, func(context.Context) error { return nil })
		}
		if got := attributesOf(spans.Ended()[1])["oncemill.duplicate.cause"]; got != tc.cause {
			t.Errorf("%+v: cause %q", tc, got)
		}
	}
}

// The record keeps the trace of the run, not that of what delivered the message.
func TestProcess_TheRecordKeepsTheRunsSpan(t *testing.T) {
	t.Parallel()
	c, spans, _ := traced()
	store := newStore(t)
	p := newProcessor(t, store, c)
	p.Process(t.Context(), delivery("o1"), func(context.Context) error { return nil })
	a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
		Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "o1"},
		Owner: "somebody-else-0001", Lease: time.Second, Retention: time.Hour, MaxAttempts: 1,
	})
	if want := spans.Ended()[0].SpanContext().SpanID().String(); err != nil || !strings.Contains(a.Trace, want) {
		t.Errorf("the record keeps %q (%v), want span %s", a.Trace, err, want)
	}
}

// An end from outside is no failure of the message: a revoked partition, the grace of a shutdown.
func TestProcess_WhatEndsTheDeliveryIsNoError(t *testing.T) {
	t.Parallel()
	revoked := errors.New("the partition was revoked")
	wrapped := func(ctx context.Context) error { return fmt.Errorf("charge: %w", context.Cause(ctx)) }
	t.Run("while it is held", func(t *testing.T) {
		t.Parallel()
		c, spans, _ := traced()
		c.MaxWait = time.Minute
		p := newProcessor(t, newStore(t), c)
		ctx, cancel := context.WithCancelCause(t.Context())
		p.Process(t.Context(), delivery("m1"), func(context.Context) error {
			time.AfterFunc(50*time.Millisecond, func() { cancel(revoked) })
			if d := p.Process(ctx, delivery("m1"), wrapped); d.Err != revoked { //nolint:errorlint // the very one
				t.Errorf("decision %+v", d)
			}
			return nil
		})
		noError(t, spans.Ended()[0])
	})
	for name, bypass := range map[string]bool{"while its handler runs": false, "while it is not guarded": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := sdkmetric.NewManualReader()
			c, spans, _ := traced()
			c.Policy.MissingID = oncemill.MissingIDBypass
			c.Policy.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
			d := delivery("m1")
			if bypass {
				d.Header = producer.Header{}
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			newProcessor(t, newStore(t), c).Process(ctx, d, func(ctx context.Context) error { cancel(revoked); return wrapped(ctx) })
			noError(t, spans.Ended()[0])
			if got := counted(t, reader, "messaging.process.duration", "error.type"); got["canceled"] != 1 {
				t.Errorf("runs by error: %v, want a canceled one", got)
			}
		})
	}
	t.Run("but a deadline is one", func(t *testing.T) {
		t.Parallel()
		c, spans, _ := traced()
		c.Policy.MissingID = oncemill.MissingIDBypass
		d := delivery("m1")
		d.Header = producer.Header{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		newProcessor(t, newStore(t), c).Process(ctx, d, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if got := attributesOf(spans.Ended()[0])["error.type"]; got != "timeout" {
			t.Errorf("error.type %q", got)
		}
	})
}

func noError(t *testing.T, span sdktrace.ReadOnlySpan) {
	t.Helper()
	if span.Status().Code != codes.Unset || attributesOf(span)["error.type"] != "" {
		t.Errorf("status %v, %v", span.Status(), attributesOf(span))
	}
}

// counted returns what a metric has, by the values of an attribute.
func counted(t *testing.T, reader *sdkmetric.ManualReader, name, by string) map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if m.Name != name {
			continue
		}
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range d.DataPoints {
				v, _ := p.Attributes.Value(attribute.Key(by))
				found[v.AsString()] += p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range d.DataPoints {
				v, _ := p.Attributes.Value(attribute.Key(by))
				found[v.AsString()] += int64(p.Count)
			}
		}
	}
	return found
}

// seconds returns the sum of a histogram.
func seconds(t *testing.T, reader *sdkmetric.ManualReader, name string) (sum float64) {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, m := range data.ScopeMetrics[0].Metrics {
		if d, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == name {
			for _, p := range d.DataPoints {
				sum += p.Sum
			}
		}
	}
	return sum
}

// A claim whose answer was lost finds itself at work: it is no link.
func TestProcess_ALostAnswerLinksNoRunToItself(t *testing.T) {
	consumertest.Virtual(t, func(t *testing.T) {
		c, spans, _ := traced()
		c.MaxWait = time.Minute
		store := &flawed{Store: newStore(t)}
		p := newProcessor(t, store, c)
		for _, err := range []error{errors.New("boom"), nil} {
			store.reply = times(1, errors.New("lost"))
			p.Process(t.Context(), delivery("m1"), func(context.Context) error { return err })
			time.Sleep(time.Hour) // virtual
		}
		var outcomes []string
		for i, span := range spans.Ended() {
			outcomes = append(outcomes, attributesOf(span)["oncemill.outcome"])
			for _, link := range span.Links() {
				if link.SpanContext.SpanID() == span.SpanContext().SpanID() {
					t.Errorf("the span of delivery %d has links %v, one of them to itself", i, span.Links())
				}
			}
		}
		if !slices.Equal(outcomes, []string{"claimed", "reclaimed"}) {
			t.Errorf("the deliveries are %v", outcomes)
		}
	})
}

// A guard that a handler uses for something else has runs of its own: its duplicates link nothing to the delivery.
func TestProcess_ANestedGuardLinksNothingToTheDelivery(t *testing.T) {
	t.Parallel()
	c, spans, tracer := traced()
	p := newProcessor(t, newStore(t), c)
	guard, err := oncemill.NewGuard(newStore(t), oncemill.Policy{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "t", Group: "mail", Handler: "send", ID: "x"}}
	send := func(ctx context.Context) error {
		_, err := oncemill.Do(ctx, guard, call, func(context.Context) (int, error) { return 1, nil })
		return err
	}
	ctx, request := tracer.Start(t.Context(), "somebody else's request")
	if err := send(ctx); err != nil {
		t.Fatal(err)
	}
	request.End()
	p.Process(t.Context(), delivery("m1"), send)
	if links := spans.Ended()[1].Links(); len(links) != 0 {
		t.Errorf("the delivery's first run has links %v", links)
	}
}

// stumbling fails its first claim.
type stumbling struct {
	dedupstore.Store
	failed atomic.Bool
}

func (s *stumbling) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

func (s *stumbling) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if !s.failed.Swap(true) {
		return dedupstore.Answer{}, errors.New("down")
	}
	return dedupstore.ClaimOne(ctx, s.Store, r)
}

// A delivery that is held counts for what it waited for, too; its span says how it ended.
func TestProcess_AHeldDeliveryCountsForWhatItWaitedForToo(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	c, spans, _ := traced()
	c.MaxWait = time.Minute
	c.Policy.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	p := newProcessor(t, &stumbling{Store: newStore(t)}, c)
	if d := p.Process(t.Context(), delivery("m1"), func(context.Context) error { return nil }); d.Action != consumer.Ack {
		t.Fatal(d)
	}
	if got := counted(t, reader, "oncemill.claims", "oncemill.outcome"); got["store_error"] != 1 || got["claimed"] != 1 {
		t.Errorf("claims: %v", got)
	}
	if got := attributesOf(spans.Ended()[0])["oncemill.outcome"]; got != "claimed" {
		t.Errorf("the span's outcome is %q", got)
	}
}

// Shadow mode must show what the guard would reject: there is no claim to count.
func TestProcess_ShadowModeCountsWhatHasNoID(t *testing.T) {
	t.Parallel()
	for policy, want := range map[oncemill.MissingID]string{oncemill.MissingIDReject: "rejected", oncemill.MissingIDBypass: "bypassed"} {
		reader := sdkmetric.NewManualReader()
		c, _, _ := traced()
		c.Policy.Shadow, c.Policy.MissingID = true, policy
		c.Policy.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		p := newProcessor(t, newStore(t), c)
		d := delivery("m1")
		d.Header = producer.Header{}
		ran := false
		if got := p.Process(t.Context(), d, func(context.Context) error { ran = true; return nil }); got.Action != consumer.Ack || !ran {
			t.Errorf("%+v, ran: %t", got, ran)
		}
		if got := counted(t, reader, "oncemill.shadow.claims", "oncemill.outcome"); got[want] != 1 {
			t.Errorf("shadow claims: %v, want one that is %s", got, want)
		}
		if got := counted(t, reader, "oncemill.claims", "oncemill.outcome"); len(got) != 0 {
			t.Errorf("claims: %v, want none", got)
		}
	}
}

// Panels lead to traces: each measurement of a delivery is an example of its span.
func TestProcess_ItsMeasurementsAreExamplesOfItsSpan(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	c, spans, _ := traced()
	c.Policy.Telemetry.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	d := delivery("m1")
	d.Header["traceparent"] = "00-" + messageTrace + "-00f067aa0ba902b7-01"
	newProcessor(t, newStore(t), c).Process(t.Context(), d, func(context.Context) error { return nil })
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		switch d := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, e := range d.DataPoints[0].Exemplars {
				found[m.Name] = fmt.Sprintf("%x", e.SpanID)
			}
		case metricdata.Histogram[float64]:
			for _, e := range d.DataPoints[0].Exemplars {
				found[m.Name] = fmt.Sprintf("%x", e.SpanID)
			}
		}
	}
	want := spans.Ended()[0].SpanContext().SpanID().String()
	for _, name := range []string{"oncemill.claims", "oncemill.claim.duration", "messaging.process.duration"} {
		if found[name] != want {
			t.Errorf("%s is an example of span %q, want %q", name, found[name], want)
		}
	}
}

// An extractor that also translates what a foreign producer calls its trace is heard, however it spells that.
func TestProcess_AHeaderThatAnExtractorAddsIsRead(t *testing.T) {
	t.Parallel()
	c, spans, _ := traced()
	c.Extractors = []producer.Extractor{func(in producer.Incoming) (producer.Identity, error) {
		in.Header["Traceparent"] = "00-" + messageTrace + "-00f067aa0ba902b7-01"
		return producer.ExtractMessageID(in)
	}}
	d := newProcessor(t, newStore(t), c).Process(t.Context(), delivery("m1"), func(context.Context) error { return nil })
	if d.Action != consumer.Ack {
		t.Fatal(d)
	}
	if got := spans.Ended()[0].SpanContext().TraceID().String(); got != messageTrace {
		t.Errorf("the span is of trace %s, want %s", got, messageTrace)
	}
}
