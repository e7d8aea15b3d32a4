package outgoing_test

import (
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/producer"
)

// What users of a service say about themselves stays with its owner: rows stay, and others read them.
func TestNewRecord_BaggageStaysBehind(t *testing.T) {
	t.Parallel()
	said, err := baggage.Parse("tenant=7,session=secret")
	if err != nil {
		t.Fatal(err)
	}
	propagator := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	ctx := producer.WithPropagator(baggage.ContextWithBaggage(t.Context(), said), propagator)
	for _, own := range []string{"", "mine=1"} { // of the message's own header
		m := producer.Message{Topic: "orders"}
		if own != "" {
			m.Header = producer.Header{"baggage": own}
		}
		r, err := outgoing.NewRecord(ctx, m)
		if err != nil {
			t.Fatal(err)
		}
		header, err := outgoing.Header(r.ID, []byte(r.Text), 0)
		if err != nil || header["baggage"] != own {
			t.Errorf("baggage %q, %v, want %q", header["baggage"], err, own)
		}
	}
}
