package sqliteoutbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
)

// What a handler copies from the message that it got may say that this was sent again: its own is not.
func TestInSQL_AMessageIsNoResendOfAnother(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	m := message("a")
	m.Header = producer.Header{"Oncemill-Resend": "3", "color": "blue"}
	write(t, box, db, m)
	rows := lease(t, box, "token", time.Minute)
	want := producer.Header{producer.HeaderID: "a", "color": "blue"}
	if diff := cmp.Diff(want, rows[0].Message.Header); diff != "" || len(m.Header) != 2 {
		t.Errorf("header (-want +got):\n%s", diff)
	}
}

// What users of a service say about themselves goes no further than its owner wants: rows stay, and others read them.
func TestInSQL_BaggageTravelsOnlyByName(t *testing.T) {
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
		_, db := newBox(t)
		box, err := sqliteoutbox.New(db, sqliteoutbox.Config{Baggage: tc.allowed})
		if err != nil {
			t.Fatal(err)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m := message("a")
		if tc.own != "" {
			m.Header = producer.Header{"baggage": tc.own}
		}
		if err := errors.Join(box.InSQL(tx).Publish(ctx, m), tx.Commit()); err != nil {
			t.Fatal(err)
		}
		if got := lease(t, box, "token", time.Minute)[0].Message.Header["baggage"]; got != tc.want {
			t.Errorf("allowed %q: baggage %q, want %q", tc.allowed, got, tc.want)
		}
	}
}
