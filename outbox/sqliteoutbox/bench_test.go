package sqliteoutbox_test

import (
	"context"
	"testing"

	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/producer"
)

// BenchmarkDrain is what the database side of a relay costs a row: lease, settle, and a publisher that does nothing.
func BenchmarkDrain(b *testing.B) {
	for name, retained := range map[string]int{"retained=0": 0, "retained=100000": 100_000} {
		b.Run(name, func(b *testing.B) {
			box, db := newBox(b)
			mustExec(b, db, `
				WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= ?)
				INSERT INTO oncemill_outbox (id, topic, payload, written_at, not_before, due_at, published_at)
				SELECT i, 'orders', x'', 1, 1, 1, unixepoch() * 1000000 FROM n`, retained)
			messages := make([]producer.Message, b.N)
			for i := range messages {
				messages[i] = producer.Message{ID: ids.New(), Topic: "orders", Payload: make([]byte, 220)}
			}
			write(b, box, db, messages...)
			done := make(chan struct{})
			counter := &countdown{left: b.N, done: done}
			cfg := relaytest.Quick()
			cfg.BatchSize = 500
			b.ResetTimer()
			stop := relaytest.Start(b, box, counter, cfg)
			<-done
			stop()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// countdown acknowledges everything, and says when it has seen enough.
type countdown struct {
	left int
	done chan struct{}
}

func (c *countdown) Publish(_ context.Context, messages ...producer.Message) error {
	if c.left -= len(messages); c.left == 0 {
		close(c.done)
	}
	return nil
}
