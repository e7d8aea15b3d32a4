package oncemill

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/internal/telemetry"
)

// Telemetry says where traces and metrics go. The zero value is ready to use. Only the API of OpenTelemetry is used:
// without an SDK nothing is recorded, and it costs next to nothing. Set global providers before the first message.
type Telemetry struct {
	// TracerProvider makes tracers. Nil: the global one.
	TracerProvider trace.TracerProvider

	// MeterProvider makes instruments. Nil: the global one.
	MeterProvider metric.MeterProvider

	// Propagator reads trace context from messages and writes it into them. What it writes into a handler's outputs is
	// kept in records too, so think twice before it writes baggage. Outboxes keep no baggage. Nil: the global one,
	// which carries nothing unless the program has set another (otel.SetTextMapPropagator).
	Propagator propagation.TextMapPropagator
}

// validate refuses a provider that was forgotten on its way into an interface: the first message would panic.
func (t Telemetry) validate() error {
	for field, value := range map[string]any{
		"TracerProvider": t.TracerProvider, "MeterProvider": t.MeterProvider, "Propagator": t.Propagator,
	} {
		if value != nil && isnil.Nil(value) {
			return invalid("Policy.Telemetry."+field, fmt.Sprintf("holds a nil %T", value))
		}
	}
	return nil
}

// storeFailed counts a failed operation of the store.
func (g *Guard) storeFailed(ctx context.Context, operation string, err error) {
	g.meter.StoreError(ctx, operation, string(g.policy.StoreDown), storeFailure(err))
}

// storeFailure says of which kind a store's error is.
func storeFailure(err error) string {
	switch {
	case errors.Is(err, dedupstore.ErrFull):
		return telemetry.StoreFull
	case errors.Is(err, dedupstore.ErrNotDurable):
		return telemetry.StoreNotDurable
	case is[*dedupstore.RecordError](err):
		return telemetry.StoreRecord
	}
	return telemetry.StoreFailure(err)
}
