package pgwal_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_ReconnectsInTheMiddleOfATransaction(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, configure func(*pgwal.Config)) {
		n := full(8000, 50_000)
		g := newRig(t, configure, func(c *pgwal.Config) { c.BatchSize, c.MaxPending, c.MaxInFlight = 50, 100, 1 })
		g.broker.set(func(context.Context, []producer.Message) error {
			lasts(2 * time.Millisecond)
			return nil
		})
		messages := numbered(n)
		for i := range messages {
			messages[i].Payload = make([]byte, 8<<10) // reading them takes the relay a while
		}
		g.write(messages...)
		g.start()
		for part := range 3 {
			until(t, "a part", func() bool { return len(g.broker.got()) > n*(part+1)/4 })
			g.kill()
		}
		g.awaitConfirmed()
		if got := len(g.broker.copies()); got != n {
			t.Errorf("published %d of %d", got, n)
		}
		if extra := len(g.broker.got()) - n; extra != 0 {
			t.Errorf("%d copies without a cause", extra)
		}
	})
}

// Rows that others write may share all but their number.
func TestRelay_RemembersWhichRowWasAcknowledged(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *pgwal.Config) {
		c.BatchSize, c.MaxInFlight, c.StopTimeout, c.StoreTimeout = 1, 1, 100*time.Millisecond, 500*time.Millisecond
	})
	g.broker.set(func(ctx context.Context, messages []producer.Message) error {
		if string(messages[0].Payload) == "first" {
			return nil
		}
		return refuse("order")(ctx, messages)
	})
	lock, err := g.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback(context.Background())
	g.exec(`INSERT INTO oncemill_outbox (number, written_at, id, topic, copy, payload)
		SELECT n, now(), 'order', 'orders', n, CASE n WHEN 1 THEN 'first' ELSE 'second' END::bytea FROM generate_series(1, 2) AS n`)
	if _, err := lock.Exec(t.Context(), `LOCK TABLE oncemill_outbox IN EXCLUSIVE MODE`); err != nil { // nothing can be recorded
		t.Fatal(err)
	}
	g.start()
	until(t, "both attempts", func() bool { return g.broker.attempts("order") >= 2 })
	was := g.holder()
	g.kill()
	until(t, "another connection", func() bool { pid := g.holder(); return pid != 0 && pid != was })
	g.broker.set(nil)
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.awaitConfirmed()
	if got := g.broker.got(); len(got) != 2 {
		t.Errorf("published %d times, want both rows", len(got))
	}
}
