package outgoing_test

import (
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/producer"
)

// What users of a service say about themselves goes no further than its owner wants: rows stay, and others read them.
func TestNewRecord_BaggageTravelsOnlyByName(t *testing.T) {
	t.Parallel()
	said, err := baggage.Parse("tenant=7,session=secret")
	if err != nil {
		t.Fatal(err)
	}
	propagator := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
	ctx := producer.WithPropagator(baggage.ContextWithBaggage(t.Context(), said), propagator)
	for _, tc := range []struct {
		allowed []string
		own     string // the message's own header
		want    string
	}{
		{nil, "", ""},
		{[]string{"other"}, "", ""},
		{[]string{"other", "tenant"}, "", "tenant=7"},
		{nil, "mine=1", "mine=1"},
	} {
		m := producer.Message{Topic: "orders"}
		if tc.own != "" {
			m.Header = producer.Header{"baggage": tc.own}
		}
		r, err := outgoing.NewRecord(ctx, m, tc.allowed)
		if err != nil {
			t.Fatal(err)
		}
		header, err := outgoing.Header(r.ID, []byte(r.Text), 0)
		if err != nil || header["baggage"] != tc.want {
			t.Errorf("allowed %q: baggage %q, %v, want %q", tc.allowed, header["baggage"], err, tc.want)
		}
	}
}
