package pgoutbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// What a handler copies from the message that it got may say that this was sent again: its own is not.
func TestIn_AMessageIsNoResendOfAnother(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	m := message("a")
	m.Header = producer.Header{"Oncemill-Resend": "3", "color": "blue"}
	write(t, box, pool, m)
	rows := lease(t, box, "token", time.Minute)
	want := producer.Header{producer.HeaderID: "a", "color": "blue"}
	if diff := cmp.Diff(want, rows[0].Message.Header); diff != "" || len(m.Header) != 2 {
		t.Errorf("header (-want +got):\n%s", diff)
	}
}

func TestName_TellsSchemasApart(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for want, cfg := range map[string]pgoutbox.Config{
		"oncemill_outbox": {}, "mail": {Table: "mail"}, "shop.oncemill_outbox": {Schema: "shop"}, "shop.mail": {Schema: "shop", Table: "mail"},
	} {
		if got := unmigrated(t, pool, cfg).Name(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What users of a service say about themselves goes no further than its owner wants: rows stay, and others read them.
func TestIn_BaggageTravelsOnlyByName(t *testing.T) {
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
		pool := newPool(t)
		box := unmigrated(t, pool, pgoutbox.Config{Baggage: tc.allowed})
		if err := box.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := message("a")
		if tc.own != "" {
			m.Header = producer.Header{"baggage": tc.own}
		}
		if err := errors.Join(box.In(tx).Publish(ctx, m), tx.Commit(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := lease(t, box, "token", time.Minute)[0].Message.Header["baggage"]; got != tc.want {
			t.Errorf("allowed %q: baggage %q, want %q", tc.allowed, got, tc.want)
		}
	}
}
