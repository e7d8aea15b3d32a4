package names_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/internal/telemetry"
)

func TestRecording_AllocatesNothing(t *testing.T) {
	b := newBench()
	meter, c := b.meter(t), b.consumer(t)
	relay, err := telemetry.NewRelay(b.Providers, "outbox", "nats")
	if err != nil {
		t.Fatal(err)
	}
	unsampled := trace.ContextWithSpanContext(context.Background(), trace.SpanContext{})
	ctx, p := c.Begin(unsampled, incoming("m1"))
	ctx = trace.ContextWithSpan(ctx, trace.SpanFromContext(unsampled))
	own := context.Background()
	full := errors.New("full")
	for name, record := range map[string]func(){
		"a claim": func() {
			meter.Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed, Attempt: 1})
		},
		"a claim without a delivery": func() {
			meter.Claim(own, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed, Attempt: 1})
		},
		"a duplicate": func() {
			meter.Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.DuplicateCompleted, Age: time.Second})
		},
		"a takeover": func() {
			meter.Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Reclaimed, Taken: true})
		},
		"a failure":                    func() { meter.Ended(ctx, "billing", "charge", "m1", telemetry.EndedPermanently) },
		"a failure without a delivery": func() { meter.Ended(own, "billing", "charge", "m1", telemetry.EndedUnknown) },
		"the duration of a claim":      func() { meter.ClaimTook(ctx, telemetry.Claimed, "", time.Millisecond) },
		"the duration of a failed":     func() { meter.ClaimTook(ctx, telemetry.StoreError, telemetry.StoreFull, time.Millisecond) },
		"a run":                        func() { p.Ran(ctx, p.Run(), telemetry.NoFailure) },
		"a run that failed":            func() { p.Ran(ctx, p.Run(), telemetry.FailedOther) },
		"a renewal":                    func() { meter.Renewal(ctx, telemetry.RenewalOK) },
		"a loss":                       func() { meter.Loss(ctx, "billing", "charge") },
		"a store error":                func() { meter.StoreError(ctx, "claim", "open", telemetry.StoreFailure(full)) },
		"a claim in shadow mode":       func() { meter.Shadow(ctx, "billing", "charge", telemetry.Claimed) },
		"a batch":                      func() { relay.Leased(own, 500) },
		"a death":                      func() { relay.Died(own, "orders") },
	} {
		record() // which makes the attributes
		if n := testing.AllocsPerRun(100, record); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

var globalsAreSet bool

// If telemetry is not configured, it costs next to nothing, and it can be configured later. One test, as global
// providers stay.
func TestGlobalProviders_MayComeLaterAndCostNothingBefore(t *testing.T) {
	if globalsAreSet {
		t.Skip("the first run has set the global providers, for good")
	}
	globalsAreSet = true
	meter, err := telemetry.NewMeter(telemetry.Providers{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := telemetry.NewConsumer(telemetry.Providers{})
	if err != nil {
		t.Fatal(err)
	}
	sender, err := telemetry.NewSender(telemetry.Providers{}, "nats")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	header := map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	n := testing.AllocsPerRun(100, func() {
		if c.On(ctx) || meter.Times(ctx) || c.Propagate(ctx, header) != ctx {
			t.Error("somebody wants to know")
		}
		meter.Claim(ctx, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed, Attempt: 1})
		_, sending := sender.Begin(ctx, "orders", "m1", header)
		sending.Answered()
		sender.Landed(ctx, sending, "orders", "m1", "ORDERS")
		if telemetry.Spanless(ctx) != ctx {
			t.Error("a context without a span was replaced")
		}
		sending.End(ctx, nil, false)
	})
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}

	b := newBench()
	otel.SetTracerProvider(b.TracerProvider)
	otel.SetMeterProvider(b.MeterProvider)
	otel.SetTextMapPropagator(b.Propagator)
	in := incoming("m1")
	in.Header = header
	within, p := c.Begin(ctx, in)
	meter.Claim(within, "billing", "charge", "m1", &telemetry.Answer{Outcome: telemetry.Claimed, Attempt: 1})
	p.End("ack", telemetry.NoFailure, nil)
	if spans := b.spans.Ended(); len(spans) != 1 || spans[0].SpanContext().TraceID().String() != "4bf92f3577b34da6a3ce929d0e0e4736" {
		t.Errorf("spans %v, want one in the message's trace", spans)
	}
	if got := b.points(t, "oncemill.claims", "oncemill.outcome"); got["claimed"] != 1 {
		t.Errorf("claims: %v", got)
	}
}
