package pgoutbox_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

func TestIn_WithoutATransactionIsAnError(t *testing.T) {
	t.Parallel()
	box, _ := newBox(t)
	for name, p := range map[string]producer.Publisher{
		"nil": box.In(nil), "typed nil": box.In((*pgxpool.Tx)(nil)), "of database/sql": box.InSQL(nil),
	} {
		err := p.Publish(t.Context(), message("1"))
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != "tx" {
			t.Errorf("%s: error %v, want one for tx", name, err)
		}
	}
}

func TestIn_KeepsTheBaggageThatTheConfigNames(t *testing.T) {
	t.Parallel()
	said, err := baggage.Parse("tenant=7,session=secret")
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t)
	box := boxIn(t, pool, pgoutbox.Config{Baggage: []string{"tenant"}})
	tx := begin(t, pool)
	ctx := producer.WithPropagator(baggage.ContextWithBaggage(t.Context(), said), propagation.Baggage{})
	if err := box.In(tx).Publish(ctx, message("a")); err != nil {
		t.Fatal(err)
	}
	commit(t, tx)
	if got := lease(t, box, "token", time.Minute)[0].Message.Header["baggage"]; got != "tenant=7" {
		t.Errorf("baggage %q, want the tenant only", got)
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
