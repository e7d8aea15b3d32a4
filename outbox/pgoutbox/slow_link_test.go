package pgoutbox_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// slowConn is a connection over a link that brings so many bytes a second.
type slowConn struct {
	net.Conn
	rate int
}

func (c slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p[:min(len(p), 16<<10)]) // little at once, or it would sleep past deadlines
	<-time.After(time.Duration(n) * time.Second / time.Duration(c.rate))
	return n, err
}

// slowPool returns a pool over a link that brings so many bytes a second.
func slowPool(t *testing.T, pool *pgxpool.Pool, rate int) *pgxpool.Pool {
	t.Helper()
	return poolIn(t, schemaOf(t, pool), func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return slowConn{conn, rate}, err
		}
	})
}

func TestRelay_BatchThatTakesTooLongToReadIsReadInParts(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	ids := numbered(40)
	for part := range slices.Chunk(ids, 10) {
		var messages []producer.Message
		for _, id := range part {
			messages = append(messages, producer.Message{ID: id, Topic: "orders", Payload: make([]byte, 64<<10)})
		}
		write(t, box, pool, messages...)
	}
	slow := slowPool(t, pool, 1<<21) // all rows take 1.3 s
	cfg := relaytest.Quick()
	cfg.BatchSize, cfg.PublishTimeout = len(ids), 500*time.Millisecond
	cfg.Lease = 1500 * time.Millisecond // rows that cannot be given back in time come again then
	b := &relaytest.Broker{}
	relaytest.Start(t, unmigrated(t, slow, pgoutbox.Config{}), b, cfg)
	relaytest.Eventually(t, "all rows are published", func() bool { return slices.Equal(sorted(b.Copies()), ids) })
}

func TestRelay_RowThatCannotBeReadInTimeHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	write(t, box, pool, producer.Message{ID: "huge", Topic: "orders", Payload: make([]byte, 4<<20)})
	ids := numbered(10)
	for _, id := range ids {
		write(t, box, pool, message(id))
	}
	cfg := relaytest.Quick()
	cfg.BatchSize, cfg.PublishTimeout = 2, 500*time.Millisecond
	cfg.Lease = 1500 * time.Millisecond
	b := &relaytest.Broker{}
	relaytest.Start(t, unmigrated(t, slowPool(t, pool, 3<<19), pgoutbox.Config{}), b, cfg) // it takes 2.7 s
	relaytest.Eventually(t, "all other rows are published",
		func() bool { return slices.Equal(sorted(b.Copies()), ids) })
}

// Removing rows with large payloads takes its time.
func TestRelay_RowsThatTakeTooLongToCleanAreCleanedInParts(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	mustExec(t, pool, `INSERT INTO oncemill_outbox (number, published_at, id, topic, payload)
		SELECT n, now() - interval '1 hour', n, 'orders', '' FROM generate_series(1, 500) AS n`)
	mustExec(t, pool, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.002); RETURN old; END'`)
	mustExec(t, pool, `CREATE TRIGGER slow BEFORE DELETE ON oncemill_outbox FOR EACH ROW EXECUTE FUNCTION slow()`)
	cfg := relaytest.Quick()
	cfg.PublishTimeout, cfg.Retention = 500*time.Millisecond, 500*time.Millisecond // all take twice as long
	relaytest.Start(t, box, &relaytest.Broker{}, cfg)
	relaytest.Eventually(t, "all rows are removed", func() bool { return count(t, pool, `true`) == 0 })
}

// After a crash of many relays their rows are taken over in parts, which are smaller where that takes its time.
func TestRelay_LeasesThatTakeTooLongToTakeOverAreTakenOverInParts(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	const rows = 1000
	mustExec(t, pool, `INSERT INTO oncemill_outbox (number, id, topic, payload) SELECT n, n, 'orders', '' FROM generate_series(1, $1::integer) AS n`, rows)
	mustExec(t, pool, `INSERT INTO oncemill_outbox_lease (token, ends_at, numbers)
		SELECT number % 40, clock_timestamp(), array_agg(number) FROM oncemill_outbox GROUP BY 1`)
	mustExec(t, pool, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.0006); RETURN new; END'`)
	mustExec(t, pool, `CREATE TRIGGER slow BEFORE UPDATE ON oncemill_outbox FOR EACH ROW WHEN (new.unknowns IS DISTINCT FROM old.unknowns) EXECUTE FUNCTION slow()`)
	cfg := relaytest.Quick()
	cfg.BatchSize, cfg.PublishTimeout = 100, 500*time.Millisecond
	relaytest.Start(t, box, &relaytest.Broker{}, cfg)
	relaytest.Eventually(t, "all rows are taken over", func() bool { return count(t, pool, `unknowns IS NULL`) == 0 })
}
