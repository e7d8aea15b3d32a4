package pgwal_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

func TestRelay_CleaningSparesRowsThatBecomePendingMeanwhile(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.write(message("order"))
	g.exec(`UPDATE oncemill_outbox SET published_at = now() - interval '1 hour'`)
	tx, err := g.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `UPDATE oncemill_outbox SET published_at = NULL, due_at = clock_timestamp(), replays = 1`); err != nil {
		t.Fatal(err)
	}
	g.start(func(c *settings) { c.Retention = time.Millisecond })
	pid := int(tx.Conn().PgConn().PID())
	until(t, "the cleaning to wait", func() bool {
		return value[int](g, `SELECT count(*) FROM pg_stat_activity WHERE $1::integer = ANY(pg_blocking_pids(pid))`, pid) > 0
	})
	g.commit(tx)
	until(t, "the copy", func() bool { return g.broker.copies()["order"] == 1 })
}

func TestRelay_CleaningAndReplayTakeTurns(t *testing.T) {
	t.Parallel()
	g := newRig(t)
	g.write(numbered(3)...)
	g.exec(`UPDATE oncemill_outbox SET published_at = now() - interval '1 hour'`)
	turn, err := g.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer turn.Rollback(context.Background())
	if _, err := turn.Exec(t.Context(), `SELECT pg_advisory_xact_lock('oncemill_outbox_lease'::regclass::oid::integer, -2)`); err != nil {
		t.Fatal(err)
	}
	replayed := make(chan int, 1)
	go func() {
		n, err := g.box.Replay(context.Background(), outbox.ReplayRequest{Before: time.Now(), Limit: 10})
		if err != nil {
			t.Error(err)
		}
		replayed <- n
	}()
	g.start(func(c *settings) { c.Retention = time.Millisecond })
	g.write(message("new")) // the relay goes on meanwhile
	until(t, "a message", func() bool { return g.broker.copies()["new"] == 1 })
	lasts(200 * time.Millisecond)
	if n := value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE id <> 'new'`); n != 3 {
		t.Errorf("%d rows left while it was another one's turn, want 3", n)
	}
	g.commit(turn)
	n := <-replayed
	until(t, "the records", func() bool {
		return value[int](g, `SELECT count(*) FROM oncemill_outbox WHERE published_at IS NULL`) == 0
	})
	copies := 0
	for id, c := range g.broker.copies() {
		if id != "new" {
			copies += c
		}
	}
	if copies != n {
		t.Errorf("Replay promised %d copies, %d were published", n, copies)
	}
}

func TestRelay_CleansFasterThanItLooks(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.PollInterval = 10 * time.Second })
	g.exec(`INSERT INTO oncemill_outbox (number, published_at, id, topic, payload)
		SELECT n, now() - interval '2 days', n, 'orders', '' FROM generate_series(1, 5500) AS n`)
	g.start()
	until(t, "all to be removed", func() bool { return value[int](g, `SELECT count(*) FROM oncemill_outbox`) == 0 })
}

// Removing rows with large payloads takes its time.
func TestRelay_RowsThatTakeTooLongToCleanAreCleanedInParts(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) { c.StoreTimeout, c.CleanInterval = 500*time.Millisecond, time.Millisecond })
	g.exec(`INSERT INTO oncemill_outbox (number, published_at, id, topic, payload)
		SELECT n, now() - interval '2 days', n, 'orders', '' FROM generate_series(1, 500) AS n`)
	g.exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.002); RETURN old; END'`)
	g.exec(`CREATE TRIGGER slow BEFORE DELETE ON oncemill_outbox FOR EACH ROW EXECUTE FUNCTION slow()`)
	r := g.relay()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	until(t, "all to be removed", func() bool { return value[int](g, `SELECT count(*) FROM oncemill_outbox`) == 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
