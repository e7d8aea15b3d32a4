package pgoutbox_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
