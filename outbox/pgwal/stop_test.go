package pgwal_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_CleanStopBehindARefusedMessage(t *testing.T) {
	t.Parallel()
	n := full(1000, 10_000)
	g := newRig(t, func(c *settings) {
		c.Backoff.Min, c.Backoff.Max, c.BatchSize, c.MaxPending = time.Hour, time.Hour, 100, 200
	})
	g.broker.set(refuse("bad"))
	g.write(message("bad"))
	stop := g.start()
	for part := range slices.Chunk(numbered(n), 200) {
		g.write(part...)
	}
	until(t, "the others", func() bool { return len(g.broker.got()) == n })
	stop()
	g.broker.set(nil)
	g.start()
	g.awaitConfirmed()
	copies := g.broker.copies()
	if len(copies) != n+1 {
		t.Errorf("published %d of %d", len(copies), n+1)
	}
	again := len(g.broker.got()) - len(copies)
	t.Logf("%d of %d published again", again, n)
	if again != 0 {
		t.Errorf("%d rows published again after a clean stop", again)
	}
}

func TestRelay_AnswersTheServerWhileItStops(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *settings) {
		config := c.Pool.Config()
		config.ConnConfig.RuntimeParams["wal_sender_timeout"] = "5s"
		c.Pool = postgrestest.Shared(t).Pool(t, func(p *pgxpool.Config) { *p = *config })
	})
	g.broker.set(func(context.Context, []producer.Message) error {
		lasts(8 * time.Second)
		return nil
	})
	stop := g.start()
	g.write(message("order"))
	until(t, "an attempt", func() bool { return g.broker.attempts("order") == 1 })
	stop()
	g.broker.set(nil)
	g.start()
	g.write(message("later"))
	until(t, "a later one", func() bool { return g.broker.copies()["later"] == 1 })
	if n := g.broker.copies()["order"]; n != 1 {
		t.Errorf("published %d times: the acknowledgement was lost in a clean stop", n)
	}
}
