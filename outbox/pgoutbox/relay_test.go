package pgoutbox_test

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
)

func TestRelay_OutlivesAMissingTable(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	box := unmigrated(t, pool, pgoutbox.Config{})
	b := &relaytest.Broker{}
	stop := relaytest.Start(t, box, b, relaytest.Quick())
	boxIn(t, pool, pgoutbox.Config{})
	write(t, box, pool, message("1"))
	relaytest.Eventually(t, "the row is published", func() bool { return b.Copies()["1"] == 1 })
	stop()
}

// TestRelay_ErrorsInAnotherEncodingAreRecordedInASCII has a batch whose results would otherwise never be recorded, so that it is
// published again and again.
func TestRelay_ErrorsInAnotherEncodingAreRecordedInASCII(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Shared(t).NewDatabase(t, `ENCODING 'EUC_JP' LOCALE 'C' TEMPLATE template0`).Pool(t)
	box := boxIn(t, pool, pgoutbox.Config{})
	write(t, box, pool, message("order"), message("poison"))
	rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "1", Limit: 10, Lease: time.Minute})
	if err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v, want 2", len(rows), err)
	}
	if err := box.Settle(t.Context(), "1", []outbox.Result{
		{Number: rows[0].Number, State: outbox.Published},
		{Number: rows[1].Number, State: outbox.Dead, Error: "no such subject \U0001F4B8"},
	}); err != nil {
		t.Fatal(err)
	}
	if dead := dead(t, box); len(dead) != 1 || dead[0].Error != "no such subject ?" {
		t.Errorf("dead are %+v", dead)
	}
	if n := stats(t, box).Pending; n != 0 {
		t.Errorf("%d rows are pending, want 0", n)
	}
}
