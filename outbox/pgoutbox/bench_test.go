package pgoutbox_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// BenchmarkDrain is what the database side of a relay costs a row: lease, settle, and a publisher that does nothing.
func BenchmarkDrain(b *testing.B) {
	for _, tc := range []struct {
		name      string
		retained  int
		ordered   bool
		retention time.Duration
	}{
		{name: "deleted at once", retention: outbox.DeleteAtOnce},
		{name: "retained", retention: time.Hour},
		{name: "retained and 1000000 before", retention: time.Hour, retained: 1_000_000},
		{name: "ordered and deleted at once", retention: outbox.DeleteAtOnce, ordered: true},
	} {
		b.Run(tc.name, func(b *testing.B) {
			pool := newPool(b)
			box := boxIn(b, pool, pgoutbox.Config{Ordered: tc.ordered})
			retain(b, pool, tc.retained)
			writeMany(b, box, pool, b.N)
			cfg := relaytest.Quick()
			cfg.BatchSize, cfg.Retention = 500, tc.retention
			counter := &countdown{done: make(chan struct{})}
			counter.left.Store(int64(b.N))
			b.ResetTimer()
			stop := relaytest.Start(b, box, counter, cfg)
			<-counter.done
			stop()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkWAL is what a message costs in write-ahead log: written by a transaction of its own, leased and removed.
func BenchmarkWAL(b *testing.B) {
	box, pool := newBox(b)
	mustExec(b, pool, `CHECKPOINT`)
	before := wal(b, pool)
	for range b.N {
		write(b, box, pool, small())
	}
	inserted := wal(b, pool)
	for left := b.N; left > 0; {
		left -= drainBatch(b, box)
	}
	b.ReportMetric(float64(inserted-before)/float64(b.N), "insert-B/op")
	b.ReportMetric(float64(wal(b, pool)-inserted)/float64(b.N), "relay-B/op")
	b.ReportMetric(float64(wal(b, pool)-before)/float64(b.N), "wal-B/op")
}

// drainBatch removes a batch as a relay does.
func drainBatch(b *testing.B, box *pgoutbox.Outbox) int {
	b.Helper()
	token := ids.Token()
	rows, err := box.Lease(context.Background(), outbox.LeaseRequest{Token: token, Limit: 500, Lease: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	results := make([]outbox.Result, len(rows))
	for i, r := range rows {
		results[i] = outbox.Result{Number: r.Number, State: outbox.Removed}
	}
	settle(b, box, token, results...)
	return len(rows)
}

func small() producer.Message {
	return producer.Message{Topic: "orders.created", Payload: make([]byte, 220)}
}

func writeMany(b *testing.B, box *pgoutbox.Outbox, pool *pgxpool.Pool, n int) {
	b.Helper()
	for n > 0 {
		messages := make([]producer.Message, min(n, 1000))
		for i := range messages {
			messages[i] = small()
			messages[i].Key = strconv.Itoa(i % 64)
		}
		write(b, box, pool, messages...)
		n -= len(messages)
	}
}

// retain fills the outbox with rows that were published.
func retain(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	mustExec(t, pool, `
		INSERT INTO oncemill_outbox (number, id, topic, payload, published_at)
		SELECT hashint8extended(i, 0), i::text, 'orders', decode(repeat('00', 220), 'hex'), clock_timestamp() FROM generate_series(1, $1::bigint) AS i`, n)
	if n > 0 {
		mustExec(t, pool, `VACUUM ANALYZE oncemill_outbox`)
		mustExec(t, pool, `CHECKPOINT`) // what filling left to do is not measured
	}
}

// wal is how much write-ahead log the server has written.
func wal(t testing.TB, pool *pgxpool.Pool) (bytes int64) {
	t.Helper()
	err := pool.QueryRow(context.Background(), `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`).Scan(&bytes)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// countdown acknowledges everything, and says when it has seen enough.
type countdown struct {
	left atomic.Int64
	done chan struct{}
}

func (c *countdown) Publish(_ context.Context, messages ...producer.Message) error {
	if c.left.Add(-int64(len(messages))) == 0 {
		close(c.done)
	}
	return nil
}
