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

// A handler may have copied the header of the message that it got. Its own Key counts, and publishers refuse two.
func TestNewRecord_TheKeyOfAnotherMessageStaysBehind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, header, want string }{
		{"own", "other", ""}, {"own", "own", "own"}, {"", "other", "other"},
	} {
		given := producer.Header{producer.HeaderKey: c.header, "ONCEMILL-KEY": "third", "x": "y"}
		r, err := outgoing.NewRecord(t.Context(), producer.Message{Topic: "orders", Key: c.key, Header: given})
		if err != nil {
			t.Fatal(err)
		}
		header, err := outgoing.Header(r.ID, []byte(r.Text), 0)
		kept := given[producer.HeaderKey] == c.header
		_, other := header["ONCEMILL-KEY"]
		if err != nil || header[producer.HeaderKey] != c.want || other != (c.key == "") || header["x"] != "y" || !kept {
			t.Errorf("key %q, header %q: the row has %v, %v", c.key, c.header, header, err)
		}
	}
}
