package pgoutbox_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

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
