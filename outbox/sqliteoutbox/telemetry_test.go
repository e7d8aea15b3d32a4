package sqliteoutbox_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
